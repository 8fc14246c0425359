"""The page: one HTML file with everything in it, whose figures are rendered as SVG."""
