"""Studies of maitred's decisions on discrete-event models; none of them is in the wheel."""
