-- Marks of consecutive tasks as one row: most tasks end about in their order, and a row for each of
-- them cost more than all else that a commit writes. Rows may overlap.

ALTER TABLE marks RENAME TO single_marks;

CREATE TABLE marks (
    partition_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (partition_id, first, last)
) STRICT, WITHOUT ROWID;

INSERT INTO marks (partition_id, first, last)
SELECT partition_id, sequence, sequence FROM single_marks;

DROP TABLE single_marks;
