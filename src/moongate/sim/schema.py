"""JSON Schema as Kimi knows it: which schemas it refuses, and a value that fits one it takes.

Kimi takes "Moonshot flavored JSON Schema" (KIMI.md section 3): the root of tool parameters is an object,
`$defs` stand only at the root, `$ref` is local and alone, `type` stands inside each `anyOf` item and not
beside it, every property is typed, tuples are unknown.
"""

import re
from typing import Any, Final

from moongate.sim.reply import invalid
from moongate.sim.text import generate

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9\-_]{0,255}\Z")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_UNKNOWN: Final = ("prefixItems", "additionalItems", "if", "then", "else", "not", "dependentSchemas", "oneOf")
_MAX_TOOLS: Final = 128
_DEPTH: Final = 64


def check_tools(tools: list[Any]) -> None:
    """Refuse tools that Kimi refuses: too many, a bad name, or parameters outside its kind of schema."""
    if len(tools) > _MAX_TOOLS:
        raise invalid(
            f"Invalid request: too many tools, at most {_MAX_TOOLS} are allowed, but got {len(tools)}"
        )
    seen: set[str] = set()
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
            raise invalid("Invalid request: tools must be objects with a member function")
        function = tool["function"]
        name = function.get("name")
        if tool.get("type") == "builtin_function":
            continue
        if not isinstance(name, str) or not _NAME.match(name):
            raise invalid(
                "Invalid request: function name is invalid, must start with a letter and can contain "
                "letters, numbers, underscores, and dashes"
            )
        if name in seen:
            raise invalid(f"Invalid request: function name {name} is duplicated")
        seen.add(name)
        if function.get("parameters") is not None:
            check_parameters(function["parameters"])


def check_parameters(schema: Any) -> None:
    """Refuse tool parameters that are not an object schema of Kimi's kind."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise invalid('tools.function.parameters.type is required and must be "object"')
    problem = flaw(schema, "", 0)
    if problem:
        raise invalid(
            "tools.function.parameters is not a valid moonshot flavored json schema, details: "
            f"<At path '{problem[0]}': {problem[1]}>"
        )


def flaw(schema: Any, path: str, depth: int) -> tuple[str, str] | None:
    """The first place where a schema leaves Kimi's kind, as path and reason; None where it does not."""
    if not isinstance(schema, dict):
        return path, "schema must be an object"
    if depth > _DEPTH:
        return path, "schema is nested too deeply"
    own = _own_flaw(schema, path, depth)
    if own:
        return own
    for where, child in _children(schema):
        found = flaw(child, f"{path}{where}", depth + 1)
        if found:
            return found
    return None


def _own_flaw(schema: dict[str, Any], path: str, depth: int) -> tuple[str, str] | None:
    if "$ref" in schema:
        if len(schema) > 1:
            return path, "$ref must not have sibling keys"
        if not str(schema["$ref"]).startswith("#"):
            return path, "only local $ref is supported"
        return None
    for name in _UNKNOWN:
        if name in schema:
            return path, f"{name} is not supported"
    if "$defs" in schema and depth:
        return path, "$defs is only allowed at the root"
    if "anyOf" in schema:
        if "type" in schema:
            return path, "type should be defined in anyOf items instead of the parent schema"
        return None
    if isinstance(schema.get("items"), list):
        return f"{path}/items", "tuple items are not supported"
    kind = schema.get("type")
    if kind is None and ("enum" not in schema and "const" not in schema):
        return path, "type is not defined"
    names = kind if isinstance(kind, list) else [kind]
    if kind is not None and not all(name in _TYPES for name in names):
        return path, f"type {kind!r} is not supported"
    return None


def _children(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for group in ("properties", "$defs"):
        members = schema.get(group)
        if isinstance(members, dict):
            found += [(f"/{group}/{name}", child) for name, child in members.items()]
    if isinstance(schema.get("anyOf"), list):
        found += [(f"/anyOf/{index}", child) for index, child in enumerate(schema["anyOf"])]
    if isinstance(schema.get("items"), dict):
        found.append(("/items", schema["items"]))
    if isinstance(schema.get("additionalProperties"), dict):
        found.append(("/additionalProperties", schema["additionalProperties"]))
    return found


def value_for(schema: Any, key: int, root: Any = None, depth: int = 0) -> Any:
    """A value that fits a schema, the same for the same key; optional members are there down to depth 8."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        return (
            value_for(_resolve(str(schema["$ref"]), root), key, root, depth + 1) if depth < _DEPTH else None
        )
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][key % len(schema["enum"])]
    for union in ("anyOf", "oneOf"):
        if schema.get(union):
            return value_for(schema[union][0], key, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or (kind is None and "properties" in schema):
        return _object_for(schema, key, root, depth)
    if kind == "array":
        many = max(int(schema.get("minItems", 1)), 0 if depth > 8 else 1)
        return [
            value_for(schema.get("items", {"type": "string"}), key + at, root, depth + 1)
            for at in range(many)
        ]
    return _scalar_for(kind, schema, key)


def _object_for(schema: dict[str, Any], key: int, root: Any, depth: int) -> dict[str, Any]:
    required = schema.get("required", [])
    return {
        name: value_for(child, key + at + 1, root, depth + 1)
        for at, (name, child) in enumerate(schema.get("properties", {}).items())
        if name in required or depth <= 8
    }


def _scalar_for(kind: Any, schema: dict[str, Any], key: int) -> Any:
    if kind in {"integer", "number"}:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", low + 100)
        value = low + ("exclusiveMinimum" in schema) + key % 7
        return min(value, high)
    if kind == "boolean":
        return key % 2 == 0
    if kind == "null":
        return None
    words = "".join(generate(key, 2, chinese=False))
    words += "x" * (int(schema.get("minLength", 0)) - len(words))
    return words[: int(schema["maxLength"])] if "maxLength" in schema else words


def _resolve(ref: str, root: Any) -> Any:
    found = root
    for step in ref.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
