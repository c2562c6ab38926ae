"""Jinja2 set up as Hugging Face's tokenizers set it up for chat templates: the oracle of model/jinja."""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

# What strftime_now() sees: 2025-01-01 12:34:56 UTC.
NOW = datetime.datetime(2025, 1, 1, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the model's own words; rendering shows the content only."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(source, variables):
    """The text, or None when the template cannot be parsed or fails."""
    try:
        text = environment().from_string(source).render(**variables)
        text.encode("utf-8")
        return text
    except Exception:
        return None
