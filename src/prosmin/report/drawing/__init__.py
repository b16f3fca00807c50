"""Charts as inline SVG: pure functions from data to a drawing."""
