"""Tests of traces and metrics by OpenTelemetry."""
