"""What must last? The interface, and the engines behind it."""
