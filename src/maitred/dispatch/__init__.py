"""Which worker gets this query, and what became of it? Its table, its life, admission. Pure."""
