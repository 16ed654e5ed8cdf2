"""Where users come in: the doors, and the process behind them."""
