"""Connections that carry frames: the transport of both ends."""
