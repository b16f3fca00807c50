"""Charts as inline SVG: pure functions, data in, a drawing out."""
