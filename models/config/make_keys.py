#!/usr/bin/env python3
"""Writes keys.json: the keys that the configuration class of each family in families.json has in transformers, besides the keys
of every family, and other names that the class accepts for them. Families without a class there have rows of their own only.

Usage: models/config/make_keys.py          (needs the package transformers; the file states its version)
       models/config/make_keys.py --check  (needs nothing: whether keys.json belongs to families.json; exit status 1 if not)
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
DIMENSIONS = ["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "intermediate_size"]


def read(name):
    return json.loads((FOLDER / name).read_text())


def keys_of(configuration, common):
    """Returns the keys and the aliases {other name: key} of a class."""
    aliases = {}
    for attribute, key in configuration.attribute_map.items():
        # Dimensions have the names that most families use.
        other, main = (key, attribute) if attribute in DIMENSIONS else (attribute, key)
        aliases[other] = main
    keys = set(configuration().to_dict()) - common
    return {"keys": sorted(keys - set(aliases)), **({"aliases": dict(sorted(aliases.items()))} if aliases else {})}


def generated(families, common):
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    known = {family: keys_of(CONFIG_MAPPING[family], common) for family in families if family in CONFIG_MAPPING_NAMES}
    return {"transformers": transformers.__version__, "families": known}


def main():
    rows = read("families.json")
    families, common = [row["model_type"] for row in rows["families"]], set(rows["every_family"]["reads"])
    if sys.argv[1:] == ["--check"]:
        keys = read("keys.json")["families"]
        for family, entry in keys.items():
            if family not in families:
                sys.exit(f"keys.json has {family}, which is no row of families.json: run models/config/make_keys.py")
            if repeated := common & set(entry["keys"]):
                sys.exit(f"keys.json has {', '.join(sorted(repeated))} of {family}, which are keys of every family")
        for row in rows["families"]:
            if repeated := set(row.get("also_reads", [])) & set(keys.get(row["model_type"], {}).get("keys", [])):
                sys.exit(f"families.json: {row['model_type']}: also_reads repeats {', '.join(sorted(repeated))} of keys.json")
    elif len(sys.argv) == 1:
        found = generated(families, common)
        lines = [f"  {json.dumps(family)}: {json.dumps(entry)}" for family, entry in found["families"].items()]
        (FOLDER / "keys.json").write_text('{\n "transformers": ' + json.dumps(found["transformers"]) +
                                          ',\n "families": {\n' + ",\n".join(lines) + "\n }\n}\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
