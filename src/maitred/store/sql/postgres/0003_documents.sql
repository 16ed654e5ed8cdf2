-- Small bodies that all shards and nodes share, each with a version that rises when it is replaced.

CREATE TABLE maitred.documents (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    body bytea NOT NULL
);
