"""What is measured, and how it is told: histograms, names, the text format of Prometheus."""
