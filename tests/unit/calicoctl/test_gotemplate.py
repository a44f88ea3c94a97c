"""calicoctl.gotemplate: what operators' templates use, with Go's field names on JSON objects."""

from __future__ import annotations

import pytest

from calicoctl.gotemplate import TemplateError, execute

POOLS = [
    {
        "kind": "IPPoolList",
        "items": [
            {
                "metadata": {"name": "a", "labels": {"x": "1", "b": "2"}},
                "spec": {"cidr": "10.0.0.0/8", "ipipMode": "Always", "allowedUses": ["W", "T"]},
            },
            {"metadata": {"name": "b"}, "spec": {"cidr": "fd00::/8", "disabled": True}},
        ],
    }
]


def items(body: str, variables: str = "") -> str:
    """The body for each pool of the list."""
    return "{{range .}}{{range " + variables + ".Items}}" + body + "{{end}}{{end}}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (items("{{.ObjectMeta.Name}} "), "a b "),
        (items("{{.Name}}={{.Spec.CIDR}};"), "a=10.0.0.0/8;b=fd00::/8;"),
        (items("{{$i}}{{$p.Name}}", "$i, $p := "), "0a1b"),
        (items("{{if .Spec.Disabled}}off{{else}}on{{end}}"), "onoff"),
        ("{{with (index . 0)}}{{len .Items}}{{end}}", "2"),
        (items("{{.Spec.IPIPMode}},"), "Always,<no value>,"),
        (items('{{join .Spec.AllowedUses "+"}}|'), "W+T||"),
        (items("{{range $k, $v := .Labels}}{{$k}}{{$v}}{{end}}"), "b2x1"),
        (items('{{printf "%-3s|%q" .Name .Spec.CIDR}}{{break}}'), 'a  |"10.0.0.0/8"'),
        (items("{{if eq .Name `a`}}{{continue}}{{end}}{{.Name}}"), "b"),
        ("a {{- /* c */ -}} b", "ab"),
        ('{{$x := "v"}}{{$x}}{{if and (eq $x "v" "w") (not false)}}!{{end}}', "v!"),
        ("{{range slice . 1}}x{{else}}none{{end}}", "none"),
        ("{{ `raw\\n` }}{{ 3 }}{{ true }}{{ nil }}", "raw\\n3true<nil>"),
        ("{{if eq 1 2}}a{{else if eq 2 2}}b{{else}}c{{end}}", "b"),
        ('{{config "asnumber"}}', "64512"),
        ('{{"x" | printf "%s%s" "y"}}', "yx"),
        ("{{range 3}}{{.}}{{end}}", "012"),
    ],
)
def test_templates(template, expected):
    assert execute(template, POOLS, {"config": lambda name: "64512"}) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{",
        "{{range .}}",
        "{{end}}",
        "{{if}}x{{end}}",
        "{{nofunction .}}",
        "{{$undefined}}",
        "{{(}}",
        "{{.a | }}",
        '{{define "x"}}{{end}}',
        "{{index . 99}}",
        "{{break}}",
        "{{len 7}}",
        '{{"x".y}}',
        "{{%}}",
    ],
)
def test_a_bad_template_is_an_error_and_never_a_traceback(template):
    with pytest.raises(TemplateError):
        execute(template, POOLS)
