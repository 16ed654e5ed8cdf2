"""Traces and metrics in OpenTelemetry's form; OpenTelemetry is imported only when it is used."""
