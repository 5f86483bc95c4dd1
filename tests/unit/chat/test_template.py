"""Chat templates work as in transformers, cannot reach Python, and cannot work for ever."""

import time

import pytest

from batchgen.chat.sandbox import CPU_LIMIT_S
from batchgen.chat.template import ChatTemplate
from batchgen.domain.errors import InvalidRequest, LoadFailed

MESSAGES = [{"role": "user", "content": "hello"}]


def render(source: str, **options) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, options, chars=100)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hello"),
        ("{% if tools is none %}no{% endif %} tools", "no tools"),
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}", "x\n"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", "2"),
        ("{{ 'a' ~ 1 ~ messages[0].role }}", "a1user"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ messages[0].content.split('l')[-1].strip() | upper }}", "O"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) }}{{ f('y') }}", "[1][y]"),
        ("{% for m in messages %}{{ loop.last }}{{ loop.length }}{% endfor %}", "True1"),
        ("{{ '%s-%02d' | format('a', 7) }}{{ '{:>3}'.format('x') }}", "a-07  x"),
        ("{% set x %}{{ 1 }}{{ 2 }}{% endset %}{{ x }}", "12"),
        ("{{ messages[::-1][0].content[1:3] }}", "el"),
        ("{{ enable_thinking is defined and enable_thinking is false }}", "True"),
    ],
)
def test_templates_render_as_in_transformers(source, expected):
    assert render(source, enable_thinking=False) == expected


def test_todays_date_can_be_asked_for():
    assert render("{{ strftime_now('%Y') }}").isdigit()


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['json'] }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__}' | format('') }}{{ ('{0.__class__}').format_map({'0': ''}) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{{ (lipsum or 1).__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('id') }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_templates_cannot_reach_pythons_insides(source):
    before = [dict(m) for m in MESSAGES]
    try:
        text = render(source)
    except (InvalidRequest, LoadFailed):
        text = ""
    assert "class" not in text
    assert "root" not in text
    assert "uid=" not in text
    assert before == MESSAGES


def grow(start: str, step: str) -> str:
    return f"{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}"


BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10**10 }}",
    "{{ [1] * 10**10 }}",
    grow("'aaaaaaaa'", "{% set ns.x = ns.x ~ ns.x %}"),
    grow("'aaaaaaaa'", "{% set ns.x = ns.x + ns.x %}"),
    grow("[1, 2]", "{% set ns.x = ns.x + ns.x %}"),
    grow("'aaaaaaaa'", "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"),
    grow("'aaaaaaaa'", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
    grow("'aaaaaaaa'", "{% set ns.x = ns.x | replace('a', ns.x) %}"),
    grow("'aaaaaaaa'", "{% set ns.x = [ns.x, ns.x, ns.x] | join(ns.x) %}"),
    "{{ '%0999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 999999999) }}",
    "{{ 'x'.center(999999999) }}",
    "{{ 'x' | center(999999999) }}",
    "{{ 'x' | indent(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ range(99999) | map('center', 99999) | list }}",
    "{{ range(99999) | map('center', 99999) | join }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    (
        "{% for i in range(99999) recursive %}{% if loop.depth < 5 %}"
        "{{ loop(range(99999)) }}{% endif %}{% endfor %}"
    ),
    "{{ lipsum(n=99999) }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_templates_cannot_work_for_ever(source):
    started = time.thread_time()
    with pytest.raises((InvalidRequest, LoadFailed)):
        render(source)
    assert time.thread_time() - started < CPU_LIMIT_S + 2


def test_a_template_that_was_too_costly_once_works_for_the_next_messages():
    template = ChatTemplate("{% for i in range(n) %}{{ 'x' * 999 }}{% endfor %}", {})
    with pytest.raises(InvalidRequest) as caught:
        template.render(MESSAGES, {"n": 99999}, chars=5)
    assert caught.value.code == "template_too_costly"
    assert template.render(MESSAGES, {"n": 1}, chars=5) == "x" * 999


def test_long_messages_are_no_bomb():
    long = [{"role": "user", "content": "x" * 5_000_000}]
    template = ChatTemplate("{% for m in messages %}{{ m.content | trim + '.' }}{% endfor %}", {})
    assert len(template.render(long, {}, chars=5_000_000)) == 5_000_001


def test_what_is_no_template_fails_the_load():
    with pytest.raises(LoadFailed, match="cannot be compiled"):
        ChatTemplate("{% for %}", {})


def test_an_expression_that_fails_is_a_refused_request():
    with pytest.raises(InvalidRequest, match="cannot render"):
        render("{{ messages[0].nothing.more }}")
