"""Random views on the device: boxes, antialiased resizing, colour and blur."""
