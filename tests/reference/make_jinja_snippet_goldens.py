#!/usr/bin/env python3
"""Writes model/jinja/testdata/snippet_goldens.json: many small templates and what Jinja2 makes of them.

Each snippet shows one rule of the language; null stands for an error, at parse or at render time.
"""
import json
import pathlib

from jinja_reference import render

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

VARIABLES = {
    "s": "Hello, World", "u": "stra\u00dfe \u01c6 \ufb01 \u0130 \u03a3\u03a3 \u4f60\u597d \U0001f600", "e": "",
    "q": "it's \"q\" \\ \n\t\u007f\u00a0\u200b\u0001", "p": "  pad\n", "n": None, "t": True, "f": False, "i": 7,
    "z": 0, "m": -7, "x": 2.5, "big": 18446744073709551615, "tiny": 1e-7, "huge": 1e22, "neg0": -0.0,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "le": [], "ll": [[1, 2], [3, 4]], "mix": [1, "a", None, True, 2.0],
    "d": {"b": 1, "a": {"c": [1, 2]}, "items": "shadow"}, "de": {},
    "rows": [{"name": "x", "v": 2, "on": True}, {"name": "y", "v": 1, "on": False},
             {"name": "Z", "v": 3}, {"name": "w", "v": 1, "on": None}],
}

BLOCKS = [
    # white space
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}\nc\n\n", "a {%- if t -%} b {%- endif -%} c",
    "  {%+ if t %}x{% endif +%}\n y", "a\n  {{ s }}\n  b", "a\n  {{- s -}}\n  b", "x\n  {# c #}\n  y", "x {#- c -#} y",
    "x\n\n{%- if t %}\n\ny\n\n{%- endif %}\n", "{% if t %}{# c #}\n{% endif %}z", "\r\na\r\n{% if t %}\r\nb\r{% endif %}",
    "{{ 1 }}\n{{ 2 }}\n\n", "\n", "", "{%- set a = 1 -%}\n\n{{ a }}", "{% raw %}{{ x }}{% if %}{% endraw %}!",
    "a {%- raw -%} {{ b }} {%- endraw -%} c", "\t{% if t %}\tx\t{% endif %}\t", "x{#\n\n#}\ny", "a\u3000{%- if t %}b{% endif %}",
    "{{ '{{' }}{{ '%}' }}", "{{'a'}}{{-'b'}}{{+1}}", "a{#-b-#}c", "{# a #}\n{# b #}\nx", "  {#+ x #}y",
    # if, for
    "{% if e %}1{% elif n %}2{% elif i %}3{% else %}4{% endif %}", "{% if not f and (z or i) %}yes{% endif %}",
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for a in l %}[{{ loop.previtem }}<{{ a }}>{{ loop.nextitem }}]{% endfor %}", "{% for a in le %}x{% else %}none{% endfor %}",
    "{% for a in l if a > 1 %}{{ loop.index }}/{{ loop.length }}={{ a }}{{ ',' if not loop.last }}{% else %}no{% endfor %}",
    "{% for a in l if a > 9 %}x{% else %}no{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}{{ c }}.{% endfor %}", "{% for (a, b) in ll %}{{ a + b }} {% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in l %}{% for b in ls %}{{ loop.index }}{{ b }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for a in l %}{{ loop.cycle('o', 'e') }}{% endfor %}",
    "{% for a in mix %}{{ loop.changed(a) }}{% endfor %}", "{% for a in undef %}x{% else %}empty{% endfor %}", "{% for a in n %}x{% endfor %}", "{% for a in 5 %}x{% endfor %}",
    "{% for a, b in l %}x{% endfor %}", "{% set x = 1 %}{% for a in l %}{{ x }}{% set x = a %}{{ x }}{% endfor %}{{ x }}", "{% break %}",
    "{% set ns = namespace(c=0) %}{% for a in l if ns.c < 2 %}{% set ns.c = ns.c + 1 %}{{ a }}{% endfor %}", "{% for a in range(3) %}{{ a }}{% endfor %}{{ a }}",
    "{% for a in l|sort|reverse %}{{ a }}{{ loop.last }}{% endfor %}", "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% if t %}{% set v = 1 %}{% endif %}{{ v }}",
    # set, with, filter, macro, call
    "{% set a = 1, 2 %}{{ a }}", "{% set a, b = 1, 'z' %}{{ b }}{{ a }}", "{% set a %}x {{ i }}{% endset %}[{{ a }}]", "{% set a | upper | trim %} x {{ s }}{% endset %}[{{ a }}]",
    "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{% set ns.c = [ns.b] %}{{ ns.a }}{{ ns.c }}{{ ns.d }}{{ ns['a'] }}", "{% set d.x = 1 %}",
    "{% set ns = namespace({'k': 2}, j=3) %}{{ ns.k }}{{ ns.j }}", "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% filter upper %}x {{ s }}{% endfilter %}",
    "{% filter replace('l', 'L') | trim %}  hello {% endfilter %}", "{% macro m(a, b='d', c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}{{ m(b=5, a=6) }}{{ m() }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(3) %}y={{ y }}{% endcall %}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}in {{ s }}{% endcall %}",
    "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(5) }}", "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}",
    "{% macro m() %}  x  {% endmacro %}{{ m()|trim }}{{ m() is string }}{{ m()|length }}", "{% generation %}a{{ s }}{% set k = 1 %}{% endgeneration %}{{ k }}", "{% print s %}",
    "{% for a in l %}{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{% endfor %}", "{% set x %}{% for a in l %}{{ a }}{% endfor %}{% endset %}{{ x|length }}",
    "{% include 'x' %}", "{% extends 'x' %}", "{% do 1 %}", "{% nope %}", "{% if %}", "{% if t %}", "{% endif %}", "{% for %}", "{{ 1 +", "{{ }}", "{% set 1 = 2 %}", "{# x", "{{ 'a }}",
    "{{ (1 }}", "{{ [1, 2 }}", "{{ 1 } }", "{{ a b }}", "{% set x %}", "{{ 1|nofilter }}", "{{ 1 is notest }}", "{% if f %}{{ 1|nofilter }}{% endif %}ok", "{% if t %}{{ 1|nofilter }}{% endif %}",
    "{{ f(1, a=2, 3) }}", "{{ $ }}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ x is defined is defined }}", "{% set loop = 1 %}{{ loop }}",
]

EXPRESSIONS = [
    # literals and printing
    "1", "1.0", "1e3", "1.5e-7", "1e16", "123456789012345680.0", "0.1 + 0.2", "1_000", "0x1F", "0b101", "0o17", "'a' 'b'", "\"x\\ty\\n\\u00e9\\x41\\101\\q\\\\\"", "'\\U0001f600'", "none", "None",
    "true", "True", "[1, 'a', none, true, 1.5]", "(1,)", "()", "(1, 2)", "{'a': 1, 2: [3]}", "{}", "[]", "1, 2", "{'a': 1, 'a': 2}", "{1: 'a', 1.0: 'b', true: 'c'}", "s", "u", "[u]", "[q]", "[\"'\"]",
    "['\"']", "['\\'\"']", "big", "tiny", "huge", "neg0", "mix", "d", "-x", "+i", "- 3", "x.y", "undef", "[undef]", "undef ~ 'x'", "[s, [d]]", "'\\\n'", "'\\N{DASH}'", "'\\ud83d'",
    # arithmetic
    "i + 1", "i - x", "i * 3", "i / 2", "6 / 2", "i // 2", "m // 2", "i % 3", "m % 3", "i % -3", "x % 2", "-2.5 % 2", "-7.5 // 2", "2 ** 10", "2 ** 3 ** 2", "2 ** -1", "-2 ** 2", "1 / 0", "1 % 0", "1 // 0.0", "t + t",
    "big + 1", "i + 's'", "'s' + 1", "'ab' * 3", "3 * 'ab'", "[1] * 2", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'a' ~ 1 ~ none ~ 1.5 ~ [1]", "1 ~ 2 + 3", "n + 1", "undef + 1", "'a' + undef", "s * -1", "7 // 2 * 2",
    "10 - 2 - 3", "2 * 3 % 4", "not t == f", "-i|abs", "i|abs", "m|abs", "1.5 + 1", "0.5 * 4", "1e308 * 10", "'%s=%d' % ('a', 3)", "'%5.2f|%-4s|%04d' % (x, 'a', i)", "'%s' % s", "'%s' % [1]", "'%x %X %o' % (255, 255, 8)", "'%d%%' % 5", "'%s' % (1, 2)", "'%(a)s' % {'a': 1}",
    # comparison, logic, in
    "1 == 1.0", "1 == t", "'a' < 'b'", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 >= 2 != 1", "[1, 2] < [1, 3]", "'a' < 1", "n < 1", "n == none", "undef == undef2", "undef == n", "d == d", "{'a': 1} == {'a': 1.0}", "[1] == (1,)", "'' or 'x'", "0 and 1", "n or le or 'last'", "1 and 2",
    "not n", "not not 1", "'lo' in s", "'' in s", "1 in l", "9 in l", "'b' in d", "1 in d", "1 in s", "'a' not in ls", "not 'a' in ls", "1 in undef", "1 in n", "none in mix", "1.0 in l", "'x' in 'xyz' and 2 in [2]", "i is defined and i > 5", "(1, 2) in [(1, 2)]", "l < ls", "x >= 2",
    "'a' if t", "'a' if f", "('a' if f) is undefined", "'a' if f else 'b'", "'a' if f else 'b' if f else 'c'", "1 if t else undef.x", "t and 'x' or 'y'",
    # subscripts
    "l[0]", "l[-1]", "l[9]", "l[9] is defined", "l['0']", "l.0", "s[0]", "s[-1]", "u[-1]", "u[7:12]", "s[1:3]", "s[::-1]", "s[::2]", "s[-3:]", "s[:-7]", "s[5:2]", "s[10:0:-3]", "l[1:]", "l[:-1]", "l[::-1]", "l[::-2]", "l[99:]", "l[-99:2]", "l[::0]", "l[none:2]", "l[t:]", "(1, 2, 3)[1:]",
    "d['b']", "d.b", "d.a.c[1]", "d['a']['c']", "d.nope", "d.nope.x", "d['nope'] is undefined", "d.items is callable", "d['items']", "d.items()|list", "n.x", "n.x.y", "n[0]", "i.x is defined", "n[1:]", "undef[1:]", "undef.x", "undef['x']", "rows[0].name", "rows[-1]['v']", "l['append'] is defined", "d.update is defined", "d.pop('b')", "l.append(4)",
    "s.upper is callable", "s.nope is defined", "{1: 'a'}[1]", "{1: 'a'}[true]", "{(1, 2): 'x'}[(1, 2)]", "d[[1]] is defined", "s.__class__", "s['__class__'] is defined", "range(5)[1:3]|list", "range(3)[-1]", "ll[1][0]", "'abc'[1]", "[1,2,3][1]", "{'a': 1}.a",
    # methods
    "s.upper()", "u.upper()", "u.lower()", "u.title()", "u.capitalize()", "s.lower()", "'ABC'.lower()", "'\u0391\u03a3 \u03a3'.lower()", "p.strip()", "p.lstrip()", "p.rstrip()", "'xxaxx'.strip('x')", "'abcba'.strip('ab')", "'\u4f60a\u4f60'.strip('\u4f60')", "s.split()", "' a  b '.split()", "' a  b '.split(' ')", "'a,b,c'.split(',', 1)",
    "'a,b,c'.rsplit(',', 1)", "' a b c '.split(none, 1)", "' a b c '.rsplit(none, 1)", "''.split()", "''.split(',')", "s.split('')", "'a</think>b'.split('</think>')[-1]", "s.replace('l', 'L')", "s.replace('l', 'L', 1)", "s.replace('', '-')", "'ab'.replace('', '-', 2)", "s.startswith('He')", "s.startswith(('x', 'He'))", "s.endswith('d')", "s.endswith(1)",
    "s.find('o')", "s.find('zz')", "u.find('\u4f60')", "s.rfind('o')", "s.index('W')", "s.index('zz')", "s.count('l')", "'aaa'.count('aa')", "', '.join(ls)", "', '.join(l)", "''.join(u|list)", "'-'.join('abc')", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('x', 'y')", "'{a} {b[c]} {b}'.format(a=1, b={'c': 2})", "'{{}}'.format()", "'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')",
    "'{:05d} {:.2f} {:,} {:x} {:+d}'.format(42, 3.14159, 1234567, 255, 5)", "'{:.1%}'.format(0.256)", "'{}'.format()", "'{!r}'.format('a')", "'{'.format()", "s.partition(', ')", "'abc'.partition('x')", "s.splitlines()", "'a\\nb\\r\\nc\\n'.splitlines()", "'a\\nb'.splitlines(true)", "'pre_x'.removeprefix('pre_')", "'x.py'.removesuffix('.py')", "'12'.isdigit()", "'a1'.isalnum()", "' '.isspace()", "''.isspace()",
    "'Ab'.isupper()", "'AB1'.isupper()", "'ab'.islower()", "d.get('b')", "d.get('zz')", "d.get('zz', 5)", "d.get('zz', d.get('b'))", "d.keys()|list", "d.values()|list|length", "d.keys()", "de.items()", "d.items()|length", "'b' in d.keys()", "l.index(2)", "l.index(9)", "l.count(1)", "s.title()", "\"they're bill's\".title()", "s.nope()", "n.x()", "undef()", "i()", "'x'.strip(1)", "'a b'.split(sep=' ')", "'a'.format(1)", "'ab'.isalpha()",
    # filters
    "s|length", "u|length", "l|length", "d|count", "n|length", "undef|length", "5|length", "s|upper", "u|upper", "s|lower", "s|title", "\"foo-bar (baz) don't\"|title", "s|capitalize", "'hELLO wORLD'|capitalize", "p|trim", "'xax'|trim('x')", "n|trim", "undef|trim", "5|trim", "s|replace('o', '0')", "s|replace('o', '0', 1)", "i|replace('7', 'x')", "l|first", "l|last", "le|first", "le|first is defined", "s|first", "s|last", "undef|first",
    "undef|last", "d|first", "d|last", "l|reverse|list", "s|reverse", "undef|list", "s|list", "d|list", "l|list", "n|list", "l|sort", "l|sort(reverse=true)", "ls|sort", "ls|sort(case_sensitive=true)", "mix|sort", "rows|sort(attribute='v')|map(attribute='name')|join", "rows|sort(attribute='v,name')|length", "rows|map(attribute='name')|list", "rows|map(attribute='on', default='?')|list", "rows|map(attribute='nope')|list|length", "ls|map('upper')|list",
    "ls|map('replace', 'A', 'x')|join(',')", "l|map('nofilter')|list", "ll|map('first')|list", "ll|map(attribute=1)|list", "[d]|map(attribute='a.c.0')|list", "rows|selectattr('on')|map(attribute='name')|list", "rows|rejectattr('on')|map(attribute='name')|list", "rows|selectattr('name', 'equalto', 'x')|list|length", "rows|selectattr('v', '>', 1)|map(attribute='name')|list", "rows|selectattr('on', 'defined')|list|length", "rows|rejectattr('v', 'in', [1])|map(attribute='v')|list",
    "l|select('odd')|list", "l|reject('odd')|list", "mix|select|list", "mix|reject('none')|list", "mix|select('string')|list", "l|select('greaterthan', 1)|list", "l|select('notest')|list", "undef|select|list", "mix|unique|list", "['a', 'A', 'b', 'a']|unique|list", "['a', 'A']|unique(true)|list", "rows|unique(attribute='v')|map(attribute='name')|list", "l|min", "l|max", "le|min", "ls|min", "ls|max(case_sensitive=true)", "rows|max(attribute='v')", "mix|max",
    "l|sum", "ls|sum", "rows|sum(attribute='v')", "l|sum(start=10)", "le|sum", "l|join", "l|join(', ')", "rows|join('|', attribute='name')", "s|join('-')", "undef|join", "n|join", "[1, none, 'a']|join(none)", "d|dictsort", "{'b': 1, 'A': 2}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'A': 2}|dictsort(false, 'value')", "{'b': 1, 'A': 2}|dictsort(reverse=true)", "l|dictsort", "d|items|list", "undef|items|list", "l|items|list", "de|items|list",
    "undef|default('x')", "n|default('x')", "n|default('x', true)", "e|d('x')", "e|d('x', boolean=true)", "undef|default", "d.nope|default(5)", "d.nope.x|default(5)", "i|string ~ 'x'", "'7'|int + 1", "'x'|int", "'x'|int(9)", "' 42 '|int", "'3.9'|int", "3.9|int", "-3.9|int", "'0x1f'|int(base=16)", "'1_0'|int", "t|int", "n|int", "n|int(5)", "undef|int", "'1.5'|float", "'x'|float", "'x'|float(1.5)", "3|float", "'1e3'|float", "'inf'|float",
    "2.5|round", "3.5|round", "2.675|round(2)", "42.55|round(1, 'floor')", "42.1|round(method='ceil')", "i|round", "1234|round(-2)", "2.5|round|int", "s|round", "s|wordcount", "s|upper(1)", "n|map('upper')|list", "z|map(attribute='a')|list", "'x' % (l|select)", "u|wordcount", "'a\\nb\\n\\nc'|indent", "'a\\nb\\n\\nc'|indent(2)", "'a\\nb\\n\\nc'|indent(2, true)", "'a\\nb\\n\\nc'|indent(2, blank=true)", "'a\\nb'|indent('> ', true)", "'a\\n'|indent", "5|indent", "'<a&\"\\'>'|e", "'<a>'|escape|upper", "'<'|safe + '<'", "'<' + ('>'|safe)", "('<'|safe) ~ '<'", "'<'|safe|e", "'<'|e|e", "('a'|safe)|string",
    "s|string", "n|string", "1.0|string", "s|attr('upper') is callable", "d|attr('b') is defined", "'%s-%s'|format(1, 'a')", "'%(a)s'|format(a=2)", "l|reverse|length", "l|map('string')|length", "l|select|first", "d.items()|first", "(l|select) and 'truthy'", "(l|select('gt', 9)) and 'truthy'", "l|select is iterable", "l|select is sequence",
    # tojson
    "s|tojson", "u|tojson", "q|tojson", "u|tojson(ensure_ascii=true)", "d|tojson", "d|tojson(indent=2)", "d|tojson(indent=0)", "l|tojson(indent=4)", "de|tojson(indent=2)", "le|tojson(indent=2)", "[[], {}, [1]]|tojson(indent=1)", "d|tojson(separators=(',', ':'))", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "[1.0, 0.1, 1e22, 1e-7, 1e16]|tojson", "mix|tojson", "big|tojson", "n|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "(1, 2)|tojson", "undef|tojson", "(l|select)|tojson", "d.items()|tojson", "'</script><b>&\\''|tojson",
    "{'a': 'x\\u2028'}|tojson", "'\\x7f\\x1f'|tojson", "tiny|tojson", "neg0|tojson", "[huge, big, 1e300]|tojson", "d|tojson(indent='--')", "d|tojson|length", "d|tojson|tojson", "range(2)|tojson",
    # tests
    "i is defined", "undef is defined", "undef is undefined", "d.nope is defined", "n is none", "n is not none", "undef is none", "s is string", "i is string", "d is mapping", "l is mapping", "l is iterable", "s is iterable", "d is iterable", "i is iterable", "n is iterable", "undef is iterable", "l is sequence", "d is sequence", "s is sequence", "i is sequence", "undef is sequence", "(1,) is sequence", "d.items() is sequence", "t is boolean", "i is boolean", "i is number", "t is number", "x is number", "s is number",
    "i is integer", "t is integer", "x is float", "i is float", "t is true", "f is false", "1 is true", "i is odd", "i is even", "x is odd", "i is divisibleby 7", "i is divisibleby(2)", "i is eq 7", "i is equalto(7)", "i is ne 7", "i is gt 5", "i is lessthan 5", "i is == 7", "1 is in l", "'a' is in 'abc'", "s is callable", "range is callable", "n is sameas none", "t is sameas true", "1 is sameas 1.0", "s is upper", "'AB' is upper", "'ab' is lower", "'12' is lower", "'upper' is filter", "'nope' is filter", "'odd' is test",
    "s is odd", "i is not odd", "not i is odd", "i is odd(1)", "i is defined none", "i is defined and s is string", "undef is odd", "'<'|safe is escaped", "s is escaped", "l is in [l]", "x is divisibleby 2.5", "namespace() is mapping", "loop is defined",
    # functions
    "range(3)|list", "range(1, 7, 2)|list", "range(3, 0, -1)|list", "range(0)|list", "range(1, 2, 0)", "range('a')", "range(100000)|length", "range(100001)|length", "dict(a=1, b=2)", "dict([('a', 1)])", "dict({'a': 1}, b=2)", "dict(5)", "raise_exception('no')", "strftime_now('%Y-%m-%d %H:%M:%S %d %b %B %a %A %j %y %% %f %Z|%z|')", "strftime_now('%-d')", "namespace(a=1).a", "dict(*[{'a': 1}])", "dict(**{'x': 1})", "range(*[1, 3])|list", "nofunction(1)", "strftime_now('')",
]


def main():
    snippets = [(source, VARIABLES) for source in BLOCKS] + [("{{ " + e + " }}", VARIABLES) for e in EXPRESSIONS]
    goldens = [[source, render(source, variables)] for source, variables in snippets]
    output = ROOT / "model" / "jinja" / "testdata" / "snippet_goldens.json"
    lines = ["{\"now_unix_seconds\": 1735734896,", "\"variables\": " + json.dumps(VARIABLES) + ",", "\"snippets\": ["]
    lines += [",\n".join(json.dumps(golden) for golden in goldens), "]}", ""]
    output.write_text("\n".join(lines))
    print(f"{output}: {len(goldens)} snippets, {sum(g[1] is None for g in goldens)} of them errors")


if __name__ == "__main__":
    main()
