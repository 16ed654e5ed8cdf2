"""The user's side: handlers, their arguments, and the tasks that are made of them."""
