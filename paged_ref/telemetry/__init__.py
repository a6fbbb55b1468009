"""Engine metrics: counters, latency histograms, the Prometheus text format (chapter 6)."""
