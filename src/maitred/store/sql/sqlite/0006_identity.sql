-- Which file this is: of which store, which of its files, and how often it was opened or, while it is
-- written, a minute went by. tasks.manifest has the same, so that a start notices a file that is
-- another one, or an older one, than the last start left.

CREATE TABLE identity (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store TEXT NOT NULL,
    file TEXT NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
