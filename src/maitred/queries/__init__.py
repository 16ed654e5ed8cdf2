"""What became of a query? Its table, its life, and who may ask how much. Pure."""
