"""Hypothesis strategies that several routing tests share."""

from hypothesis import strategies as st

from maitred.routing import QueueId

# Short addresses from few letters, so that points collide: `a1` + `11` spells like `a11` + `1`.
addresses = st.text(alphabet="ab1:", min_size=1, max_size=6)
host_lists = st.lists(addresses, min_size=1, max_size=8, unique=True)
names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P"], exclude_characters=":"),
    min_size=1,
    max_size=20,
).filter(lambda name: not name.startswith("/_sys/"))
queues = st.builds(QueueId, names, names, st.integers(0, 100))
keys = st.text(max_size=40)
