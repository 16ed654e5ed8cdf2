-- Rows that cannot be read, set aside until an operator decides. `head` is JSON: what is known of the
-- row besides the columns. A row that SQLite itself cannot read or delete still stands in its own
-- table (`in_place`), and is left out of everything that is read there. When an operator has dropped
-- such a row, it stays here as `dropped`.

CREATE TABLE damaged (
    partition_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    kind TEXT NOT NULL,
    last INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    in_place INTEGER NOT NULL,
    dropped INTEGER NOT NULL DEFAULT 0,
    head TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (partition_id, first, kind)
) STRICT;
