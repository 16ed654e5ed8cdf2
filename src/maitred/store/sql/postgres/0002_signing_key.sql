-- One row: the key with which owners of partitions sign what they hand out.

CREATE TABLE maitred.signing_key (
    id smallint PRIMARY KEY CHECK (id = 1),
    key bytea NOT NULL
);
