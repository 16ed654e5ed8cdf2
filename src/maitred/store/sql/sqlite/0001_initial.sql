-- What one tasks-<n>.db holds. Everything of a partition is in one file, under the partition's id.

CREATE TABLE partitions (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    queue TEXT NOT NULL,
    queue_type INTEGER NOT NULL,
    partition INTEGER NOT NULL,
    range_id INTEGER NOT NULL,
    backlog INTEGER NOT NULL,
    clean INTEGER NOT NULL,
    found_clean INTEGER NOT NULL, -- what `clean` was when the present owner came
    counts_read INTEGER,
    counts_write INTEGER,
    counts_version INTEGER,
    UNIQUE (namespace, queue, queue_type, partition)
) STRICT;

-- Bodies are large, so rows are found by an index that can be walked without touching them.
CREATE TABLE segments (
    id INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    tasks INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE INDEX segments_in_order ON segments (partition_id, priority, first, last, tasks);

CREATE TABLE marks (
    partition_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) STRICT, WITHOUT ROWID;

-- In `later` and `dead` a body begins with its moment, eight bytes of a double: rows are handed out
-- many at a time as text, and SQLite's text of a double is not always the same double.
CREATE TABLE later (
    partition_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    due REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE INDEX later_by_due ON later (partition_id, due, sequence);

-- With rowids, so that counting walks an index and not the bodies.
CREATE TABLE dead (
    id INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (partition_id, sequence)
) STRICT;

CREATE TABLE results (
    partition_id INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (partition_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE INDEX results_by_expiry ON results (expires_at);
