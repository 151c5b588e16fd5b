//! What bounds a template: hostile ones end, and others do not notice.

use super::{flat, muse, render_with};
use crate::tokenizer::nano;
use glimmer_engine::chat::message::Message;
use glimmer_engine::chat::template::{ChatTemplate, RenderInput};
use serde_json::{Map, Value, json};

/// Templates that ask for far more memory or time than they are worth.
fn hostile() -> Vec<String> {
    let shared = |levels: usize, last: &str| {
        let step = "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}";
        format!("{{% set n = namespace(x=[], y=[]) %}}{{% for i in range({levels}) %}}{step}{{% endfor %}}{last}")
    };
    let grown = |of: &str, step: &str, last: &str| {
        format!(
            "{{% set n = namespace(x={of}, y={of}) %}}{{% for i in range(99) %}}{{% set n.x = {step} %}}{{% endfor %}}{last}"
        )
    };
    let again = |body: &str| {
        format!("{{% for i in range(99999) %}}{{% for j in range(999) %}}{body}{{% endfor %}}{{% endfor %}}")
    };
    let mut all = vec![
        "{{ '{:>4000000000}'.format(1) }}".to_string(),
        "{{ '{:04000000000d}'.format(1) }}".into(),
        "{{ '{:.4000000000f}'.format(1.5) }}".into(),
        "{{ '{:99999999999999999999}'.format(1) }}".into(),
        "{{ ('{0}' * 99999).format('x' * 99999) }}".into(),
        "{{ '%4000000000d' % 1 }}".into(),
        "{{ '%4000000000d' | format(1) }}".into(),
        "{{ '%*d' | format(4000000000, 1) }}".into(),
        "{{ 'x' * 4000000000 }}".into(),
        "{{ 4000000000 * 'x' }}".into(),
        "{{ ('x' * 9999999).replace('x', 'x' * 9999) }}".into(),
        "{{ ('x' * 9999999) | replace('x', 'x' * 9999) }}".into(),
        "{{ ('x' * 9999999) | replace('', 'x' * 99) }}".into(),
        "{{ ('x' * 99999).join('x' * 99999) }}".into(),
        "{{ range(99999) | join('x' * 99999) }}".into(),
        "{{ ('x\n' * 999999) | indent(4000000) }}".into(),
        "{{ ('x' * 60000000).split('x') | length }}".into(),
        "{{ ('x' * 60000000) | split('x') | length }}".into(),
        "{{ ('x' * 60000000) | list | length }}".into(),
        "{{ ('\n' * 60000000) | lines | length }}".into(),
        "{{ ('\n' * 60000000).splitlines() | length }}".into(),
        "{{ 'x'.ljust(4000000000) }}".into(),
        "{{ 'x'.zfill(4000000000) }}".into(),
        "{{ 'x' | center(4000000000) }}".into(),
        "{{ range(1000000000000) | list | length }}".into(),
        "{{ [1] * 1000000000000 }}".into(),
        "{{ ([[]] * 1000000000000) == ([[]] * 1000000000000) }}".into(),
        "{{ ([] * 1000000000000) | list }}".into(),
        "{{ (1, 2) * 1000000000000 }}".into(),
        "{{ strftime_now('%1000000000Y') }}".into(),
        "{{ raise_exception('x' * 9999999) }}".into(),
        "{{ 'x' * 9999999 - 1 }}".into(),
        "{{ 10 ** 10 ** 10 ** 10 }}".into(),
        "{{ debug() }}".into(),
        "{{ range(99999)|list|tojson(indent='x' * 999999) }}".into(),
        "{{ range(99999)|list|tojson(separators=('x' * 999999, '')) }}".into(),
        "{{ ('\\u0001' * 60000000)|tojson }}".into(),
        "{{ [[1]] | sum(start=[]) }}".into(),
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}".into(),
        "{% set n = namespace() %}{% set n.n = n %}{{ n == {'n': n} }}".into(),
        "{% macro m(x, d) %}{% if d %}{{ m([x, x], d - 1) }}{% else %}{{ x == [x] }}{% endif %}{% endmacro %}{{ m([], 40) }}".into(),
        "{% for x in [[1]] recursive %}{{ loop([[x, x], [x, x]]) }}{% endfor %}".into(),
        format!("{{% set x = [[], []] %}}{}{{{{ x == [x] }}}}", "{% set x = [x, x] %}".repeat(60)),
        format!("{{{{ 'x'{} }}}}", "~'x'".repeat(900)),
        format!("{{{{ 'x'{} }}}}", "~'x'".repeat(5000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(5000)),
        format!("{{{{ x{} }}}}", "[1:]".repeat(900)),
        format!("{{{{ {}1 }}}}", "-".repeat(60000)),
        grown("'ab'", "n.x ~ n.x", "{{ n.x | length }}"),
        grown("'ab'", "n.x + n.x", "{{ n.x | length }}"),
        grown("'ab'", "n.x.replace('a', n.x)", "{{ n.x | length }}"),
        grown("'ab'", "n.x | replace('a', n.x)", "{{ n.x | length }}"),
        grown("[1]", "n.x + n.x", "{{ n.x | length }}"),
        grown("[]", "n.x + n.x", "{{ n.x | length }}"),
        grown("[]", "n.x + n.x", "{% for x in n.x %}{% endfor %}"),
        grown("[]", "n.x | chain(n.x)", "{{ n.x | length }}"),
        grown("[1]", "(n.x + n.x) | batch(2) | list", "{{ n.x }}"),
        grown("{'a': 1}", "{'a': n.x, 'b': n.x}", "{{ n.x }}"),
        grown("(1, 2)", "(n.x, n.x)", "{{ n.x }}"),
        grown("1", "namespace(a=n.x, b=n.x)", "{{ n.x }}"),
        grown("1", "dict(a=n.x, b=n.x)", "{{ n.x }}"),
        grown("[1, 2]", "n.x[0:] + n.x[0:]", "{{ n.x == n.y }}"),
        again("{% set x %}{{ 'x' * 9999 }}{% endset %}"),
        again("{{ 'x' * 9999 }}"),
        again(&"x".repeat(9999)),
        format!("{{% set a = 'x' * 9999999 %}}{{% set b = 'x' * 9999999 %}}{}", again("{{ a == b }}{{ [a] == [b] }}{{ a in b }}")),
        format!("{{% set a = range(99999) | list %}}{{% set b = range(99999) | list %}}{}", again("{% if [a] == [b] %}{% endif %}")),
        format!("{{% set a = range(9999) | list %}}{{% set b = [[[a, 1], [a, 2]], 3] %}}{}", again("{{ {b: 1} | length }}{{ b is in [b + [4]] }}")),
        again("{% set n = namespace(x=[]) %}{% set n.x = n.x[1:] %}"),
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x[0:] %}{% endfor %}{{ n.x }}".into(),
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = n.x | reverse %}{% endfor %}{{ n.x }}".into(),
    ];
    // The most that may be nested, for the stack.
    for (open, middle, close) in [
        ("not ", "1", ""),
        ("-", "1", ""),
        ("", "x", ".b"),
        ("", "x", "[0]"),
        ("", "x", "|list"),
        ("", "x", " is defined"),
        ("", "1", " and 1"),
        ("", "x", " + x"),
        ("", "1", " if 1"),
        ("", "x", " ~ 'x'"),
    ] {
        all.push(format!("{{{{ {}{middle}{} }}}}", open.repeat(990), close.repeat(490)));
        all.push(format!("{{{{ {}{middle}{} }}}}", open.repeat(490), close.repeat(990)));
    }
    for (open, middle, close) in
        [("(", "1", ")"), ("[", "1", "]"), ("{1: ", "1", "}"), ("range(", "1", ")"), ("x[", "0", "]")]
    {
        all.push(format!("{{{{ {}{middle}{} }}}}", open.repeat(48), close.repeat(48)));
        all.push(format!("{{{{ {}{middle}{} }}}}", open.repeat(97), close.repeat(97)));
    }
    for (open, close) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for i in [1] %}", "{% endfor %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% with a = 1 %}", "{% endwith %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% macro m() %}", "{% endmacro %}{{ m() }}"),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}", "{% endcall %}"),
    ] {
        all.push(format!("{}x{}", open.repeat(48), close.repeat(48)));
        all.push(format!("{}x{}", open.repeat(99), close.repeat(99)));
    }
    all.push(format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(98)));
    let deep = "{% set n = namespace(x=[], y=[]) %}{% for i in range(180) %}{% set n.x = [n.x] %}{% set n.y = {'a': n.y} %}{% endfor %}";
    for last in
        ["{{ n.x }}", "{{ n.x == [n.x] }}", "{{ n.y }}", "{{ {n.y: 1} }}", "{{ n.x|tojson }}", "{{ [n.x, n.x]|sort }}"]
    {
        all.push(format!("{deep}{last}"));
    }
    all.push(format!(
        "{deep}{{% macro m(x) %}}{{{{ (((([m([x])])))) | string | upper ~ x }}}}{{% endmacro %}}{{{{ m(n.x) }}}}"
    ));
    all.push("{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}".into());
    all.push(format!("{deep}{}", "{{ [n.x, range(99999)|list]|tojson(indent=64) }}"));
    let long = "{% set n = namespace(x=range(99999)|list) %}{% for i in range(20) %}{% set n.x = [n.x] %}{% endfor %}";
    all.push(format!("{long}{}", "{{ n.x|tojson(indent=64) }}"));
    all.push("{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}".into());
    for last in [
        "{{ n.x }}",
        "{{ n.x ~ '' }}",
        "{{ n.x | string }}",
        "{{ n.x == n.y }}",
        "{{ n.x < n.y }}",
        "{{ n.x is eq n.y }}",
        "{{ n.x in [n.y] }}",
        "{{ n.x in 'text' }}",
        "{{ 'text' in n.x }}",
        "{{ n.x not in n.y }}",
        "{{ n.x | tojson }}",
        "{{ n.x | list }}",
        "{{ n.x | sort }}",
        "{{ n.x | unique }}",
        "{{ [n.x, n.y] | min }}",
        "{{ n.x | join }}",
        "{{ ''.join(n.x) }}",
        "{{ '{}'.format(n.x) }}",
        "{{ '%s' | format(n.x) }}",
        "{{ n.x | upper }}",
        "{{ n.x | map('string') | list }}",
        "{{ [n.x] | select('eq', n.y) | list }}",
        "{{ {n.x: 1} }}",
        "{{ {}.get(n.x) }}",
        "{{ {}[n.x] }}",
        "{{ [].count(n.x) }}{{ n.x.count(n.y) }}",
        "{{ n.x * 2 }}",
        "{{ n.x + n.y }}",
        "{{ n.x - 1 }}",
        "{{ raise_exception(n.x) }}",
        "{% for i in [1, 2] %}{{ loop.changed(n.x if i == 1 else n.y) }}{% endfor %}",
        "{% for i in [1, 2] %}{{ loop['changed'](n.x if i == 1 else n.y) }}{% endfor %}",
        "{% include n.x %}",
        "{{ n }}",
        "{% set m = n %}{{ m == namespace(x=n.y, y=n.x) }}",
        "{% filter replace('', n.x) %}a{% endfilter %}",
        "{% set a | replace('', n.x) %}a{% endset %}",
        "{% with a = n.x, b = n.y %}{{ a == b }}{% endwith %}",
        "{% macro m(a=n.x, b=n.y) %}{{ a == b }}{% endmacro %}{{ m() }}",
        "{% macro m(a, b) %}{{ a == b }}{% endmacro %}{{ m(n.x, b=n.y) }}{{ m(*[n.x, n.y]) }}{{ m(**{'a': n.x, 'b': n.y}) }}",
        "{% macro m() %}{{ caller(n.x, n.y) }}{% endmacro %}{% call(a, b) m() %}{{ a == b }}{% endcall %}",
    ] {
        all.push(shared(40, last));
        // Small enough to be made, and then looked at again and again.
        if all.len() % 3 == 0 {
            all.push(shared(12, &format!("{{% for i in range(99999) %}}{last}{{% endfor %}}")));
        }
    }
    all
}

#[test]
#[ignore = "run in a process of its own by `hostile_templates_are_bounded`"]
fn hostile_templates_here() {
    let peak = || -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
    };
    for source in hostile() {
        let result = render_with(&source, json!([1, "text"]));
        let shown: String = source.chars().take(300).collect();
        if let Err(error) = result {
            let error = error.to_string();
            assert!(!error.contains('\n') && error.len() < 3000, "{shown}\n{error}");
        }
        assert!(peak().is_none_or(|kilobytes| kilobytes < 300_000), "{shown}: {:?} kB", peak());
    }
}

#[test]
fn hostile_templates_are_bounded() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "template::bounds::hostile_templates_here", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn thousands_of_messages_and_a_megabyte_of_tools_are_within_bounds() {
    let tools: Vec<Value> = (0..500)
        .map(|n| {
            let properties =
                (0..20).map(|p| (format!("p{p}"), json!({"type": "string", "description": "x".repeat(60)})));
            json!({"name": format!("space{}.f{n}", n % 50), "parameters": {"properties": Map::from_iter(properties)}})
        })
        .collect();
    let mut messages = vec![Message::system("s")];
    for n in 0..1000 {
        let id = format!("call-{n}");
        let call = json!([{"id": id, "function": {"name": "f", "arguments": {"n": n, "text": "x".repeat(300)}}}]);
        messages.push(Message::assistant("", None).with("tool_calls", call));
        messages.push(
            Message::from_value(json!({"role": "tool", "tool_call_id": id, "content": "y".repeat(300)})).unwrap(),
        );
    }
    assert!(muse(&messages, &tools).len() > 2000);
    let text: Vec<Message> = (0..4000).map(|n| Message::user(format!("{n} {}", "z".repeat(250)))).collect();
    assert!(muse(&text, &[]).len() > 4000);
}

/// A value for the template engine itself.
fn jinja(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => ().into(),
        Value::Bool(b) => (*b).into(),
        Value::Number(n) => n.as_i64().unwrap().into(),
        Value::String(s) => s.into(),
        Value::Array(items) => items.iter().map(jinja).collect::<Vec<_>>().into(),
        Value::Object(fields) => minijinja::Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), jinja(v)))),
    }
}

#[test]
fn what_bounds_a_template_changes_nothing_in_it() {
    let context = json!({
        "x": [3, 1, 2], "s": "Some Text, more", "d": {"a": 1, "b": [1, {"c": "é"}]}, "n": 5, "t": true, "z": null,
        "people": [{"name": "b", "age": 2}, {"name": "a", "age": 3}, {"name": "c"}],
    });
    let mut plain = minijinja::Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap();
    plain.set_syntax(syntax);
    plain.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    for source in [
        "{{ -n|abs }} {{ - n }} {{ --n }} {{ 2 * x|length }} {{ x|length * 2 ** 2 // 3 % 4 - 1 / 2 }} {{ n-1 }} {{ n -1 -}} .",
        "{{ n is divisibleby 5 }} {{ n is divisibleby(5) and t }} {{ n is not divisibleby n-3 }} {{ z is not none and t }}",
        "{{ 'a' if x is sequence else 'b' }} {{ 'a' if not t }} {{ 'a' if z else 'b' if t else 'c' }} {{ (z or n) ~ '!' }}",
        "{{ x[0] }}{{ x[-1] }}{{ x[1:] }}{{ x[:2] }}{{ x[::-1] }}{{ x[:] }}{{ x[n-4:n] }}{{ s[2:4] }}{{ x.0 }}{{ d['b'][1].c }}",
        "{{ 1 < n < 9 }} {{ 1 < n > 9 }} {{ 3 in x and 4 not in x }} {{ 'a' in d }} {{ not n == 5 or n != 4 }} {{ [1] == [1] }}",
        "{{ {'a': n, s: x, 'l': [1, 2,], 't': (1, 2), 'e': {}, 'f': [], 'g': (),}['a'] }} {{ (1,)|length }} {{ ((n)) + (1) }}",
        "{{ 'a' 'b' ~ 'c' ~ n ~ 1.5 ~ [1, 'a'] ~ \"}}\" ~ '%}' ~ '{{' }} {{ 'it\\'s' }} {{ 1_000 + 1e3 if false else 2 }}",
        "{{ s|lower|replace('some', 'any')|title|length }} {{ s.split(', ')[0].upper() }} {{ s.lower().replace('t', 'T', 1) }}",
        "{{ people|selectattr('age', 'defined')|map(attribute='name')|sort|join('-') }} {{ people|map(attribute='age', default=0)|list }}",
        "{{ people|rejectattr('name', 'equalto', 'a')|list|length }} {{ x|sort(reverse=true)|first }} {{ x|select('odd')|list|last }}",
        "{{ d|items|list }} {{ d|dictsort }} {{ d.items()|list }} {{ d.get('q', 'none') }} {{ x|unique|list }} {{ x|min }}{{ x|max }}",
        "{{ '%s is %d' | format(s, n) }} {{ '{} {:>5}'.format(n, 1) }} {{ ','.join(['a', 'b']) }} {{ 'a b'.split()|list }}",
        "{{ x|reverse|list }} {{ s|indent(2) }} {{ missing|default('m') }} {{ missing is defined }}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = a, b %}{{ c }}{% set (e, f) = x[:2] %}{{ e ~ f }}{% set g %} {{ n }} {% endset %}{{ g }}",
        "{% set h | upper | replace('A', 'b') %}xa{% endset %}{{ h }}{% filter upper|trim %} q {% endfilter %}{% with a = n, b = a|default(0) %}{{ a }}{{ b }}{% endwith %}",
        "{% for k, v in d.items() if k != 'a' %}{{ loop.index }}{{ k }}{{ v }}{% else %}none{% endfor %}{% for i in [] %}{% else %}e{% endfor %}",
        "{% for i in x %}{% if loop.first %}<{% elif loop.last %}>{% else %}|{% endif %}{{ loop.cycle('a', 'b') }}{{ loop.nextitem }}{% if i == 1 %}{% continue %}{% endif %}{% endfor %}",
        "{% for i in [[1, [2]], [3]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}",
        "{% macro m(a, b='q', c=[1, 2], d=none,) %}{{ a }}{{ b }}{{ c }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{{ m(a=1, b=x) }}{{ m(*[1, 2]) }}{% call m(1, c=n) %}in{% endcall %}",
        "{% macro e() %}e{% endmacro %}{% macro r(k) %}{{ k }}{% if k %}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ e() }}{{ r(3) }}{% do x|length if false %}",
        "{% macro l(y) %}{{ caller(y, 2) }}{% endmacro %}{% call(u, v) l(n) %}{{ u + v }}{% endcall %}{% do e() if false %}",
        "{% set ns = namespace(l=[], n=0, t='') %}{% for i in x %}{% set ns.l = ns.l + [i] %}{% set ns.n = ns.n + i %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.l }}{{ ns.n }}{{ ns.t }}",
        "{# {{ no }} {% no #}{% raw %}{{ raw }}{% if %}{% endraw %}{%- raw -%} {{ r {%- endraw %}\n  {% if t %}\n  y\n  {%- endif +%}\n{{- n }}\n  {#- c -#}  \n.",
        "{%- for m in people -%}\n  {{- m.name + ':' + (m['age']|string if m.age is defined else '?') -}}\n{%- endfor -%}\n",
        "{{ range(3)|list }} {{ range(1, 4)[1] }} {{ dict(a=1)['a'] }} {{ t and not z }} {{ (t, z)[0] }} {{ [t, z] | first }}",
        "{{ x | map('string') | join }} {{ n | string | length }} {{ n|float }} {{ '7'|int + 1 }} {{ 2.5|round }} {{ s|e }} {{ s|safe }}",
        "{{ true }} {{ none is none }} {{ n is number and n is not string }} {{ s is string }} {{ d is mapping }} {{ n is in [5] }} {{ n is eq 5 }}",
        "{{ '' }}{{ [] }}{{ {} }}{{ () }}{{ [[]] }}{{ n if n in x or n > 4 and not (z) }}",
    ] {
        let expected = plain.render_str(source, jinja(&context));
        let extra = context.as_object().cloned().unwrap();
        let template = ChatTemplate::new(source, "t.jinja", &nano()).unwrap();
        let rendered = template.render(&RenderInput { extra, ..RenderInput::default() });
        match (expected, rendered) {
            (Ok(expected), Ok(segments)) => assert_eq!(flat(&nano(), &segments), expected, "{source}"),
            (Err(expected), Err(_)) => assert!(source.contains("{% do"), "{source}\n{expected}"),
            (expected, rendered) => panic!("{source}\n{expected:?}\n{rendered:?}"),
        }
    }
}
