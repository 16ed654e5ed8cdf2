"""The schema of the settings: which settings exist, which values fit them, and errors in words."""

from maitred.schema.fit import check_complete, fit, names, unknown
from maitred.schema.kinds import Field, SettingKind, fields_of, kind_of
from maitred.schema.rows import ANY_NAME, Row, rows
from maitred.schema.toml_files import read_toml

__all__ = [
    "ANY_NAME",
    "Field",
    "Row",
    "SettingKind",
    "check_complete",
    "fields_of",
    "fit",
    "kind_of",
    "names",
    "read_toml",
    "rows",
    "unknown",
]
