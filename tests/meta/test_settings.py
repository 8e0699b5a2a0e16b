"""No setting is ignored: what the tree names, something outside the reading of settings looks at."""

import ast

import pytest

from moongate.core.catalogue import every_setting
from moongate.core.later import LATER
from tests.source import PACKAGE, python_files, tree

READING = {"settings", "catalogue", "agreement", "completion", "later", "flags", "reading", "verdict"}
OUTSIDE = [
    path
    for path in python_files("src/moongate")
    if not path.is_relative_to(PACKAGE / "sim") and not (path.parent.name == "core" and path.stem in READING)
]
LOOKED_AT = {
    node.attr for path in OUTSIDE for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)
}
FIXED = {".".join(each.path).replace("targets.*.", "targets[].") for each in LATER if each.works}
NAMES = {"routes.*.timeouts.preset"}  # it only says where the other time-outs come from


@pytest.mark.parametrize(
    "path", [path for path, setting in every_setting() if setting.kind and path not in FIXED | NAMES]
)
def test_each_setting_is_looked_at(path: str) -> None:
    assert path.rpartition(".")[2] in LOOKED_AT
