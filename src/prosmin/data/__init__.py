"""Where images come from, how they are decoded, and the views the network sees."""
