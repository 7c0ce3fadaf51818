#!/usr/bin/env python3
"""Records what transformers renders from templates/*.jinja over conversations.json, into renderings.json.

    pip install transformers==5.23.0 jinja2==3.1.6 && python3 make.py

The messages of conversations.json have the form of the API; what a user of transformers does by hand before
apply_chat_template (arguments as an object, no null contents, the name of a tool's result) is done in plain() below.
A case that the template refuses or fails on is recorded with its kind of error.
"""
import datetime
import json
import pathlib
import re

import jinja2
import transformers.utils.chat_template_utils as utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2025, 3, 9, 7, 5, 2)
SPELLINGS = re.compile(
    r"<\|[^<>|\s'{}]+\|>|<｜[^｜\s]+｜>|\[/?[A-Z_]{3,}\]|<SPECIAL_\d+>|\[\|[a-z]+\|\]|\[gMASK\]|<sop>"
    r"|<(?:start|end)_of_\w+>"
)
MARKERS = re.compile(r"</?[a-z_]+>")
ROLES = ["system", "developer", "user", "assistant", "tool"]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = Clock


def plain(messages):
    messages = json.loads(json.dumps(messages))
    names = {}
    for message in messages:
        if message.get("content") is None:
            message["content"] = ""
        for call in message.get("tool_calls") or []:
            names[call["id"]] = call["function"]["name"]
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])
    return messages


def render(template, case):
    try:
        texts, _ = utils.render_jinja_template(
            conversations=[plain(case["messages"])],
            tools=case.get("tools") or None,
            documents=case.get("documents"),
            chat_template=template,
            add_generation_prompt=case["add_generation_prompt"],
            **VARIABLES,
            **case.get("kwargs", {}),
        )
        return {"text": texts[0]}
    except jinja2.exceptions.UndefinedError as error:
        return {"failed": str(error)}
    except jinja2.exceptions.TemplateError as error:
        return {"refused": str(error)}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        return {"failed": str(error)}


def main():
    cases = json.loads((HERE / "conversations.json").read_text())
    out = {"transformers": __import__("transformers").__version__, "jinja2": jinja2.__version__,
           "now": NOW.isoformat(), "variables": VARIABLES, "templates": []}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text()
        tokens = set(SPELLINGS.findall(source)) | set(VARIABLES.values())
        if "'<|' +" in source or "<|{{" in source:
            tokens |= {f"<|{role}|>" for role in ROLES}
        if "'[|' +" in source:
            tokens |= {f"[|{role}|]" for role in ROLES}
        rendered = {case["name"]: render(source, case) for case in cases}
        markers = set(MARKERS.findall(source)) - tokens
        out["templates"].append({"file": path.name, "control_tokens": sorted(tokens), "markers": sorted(markers),
                                 "renderings": rendered})
        counts = {kind: sum(kind in r for r in rendered.values()) for kind in ("text", "refused", "failed")}
        print(path.name, counts, {r["failed"] for r in rendered.values() if "failed" in r})
    (HERE / "renderings.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
