//! Fields of a config, read with their bounds.

use glimmer_checkpoint::{Error, Fields};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn values_within_their_bounds() {
    let map = map(json!({
        "n": 7, "x": 0.5, "flag": true, "name": "muse", "one": 3, "many": [1, 2], "thetas": [500000.0, 0],
        "names": ["a", "b"], "nothing": null, "inner": {"deeper": {"n": 1}}
    }));
    let fields = Fields::new("config.json", &map);
    assert_eq!(fields.opt_usize("n", 1..=7).unwrap(), Some(7));
    assert_eq!(fields.opt_u32("n", 7..=u32::MAX).unwrap(), Some(7));
    assert_eq!(fields.opt_f32("x", 0.0..=1.0).unwrap(), Some(0.5));
    assert_eq!(fields.opt_f32("n", 0.0..=7.0).unwrap(), Some(7.0));
    assert_eq!(fields.opt_bool("flag").unwrap(), Some(true));
    assert_eq!(fields.opt_str("name").unwrap(), Some("muse"));
    assert_eq!(fields.opt_u32_list("one", 0).unwrap(), Some(vec![3]));
    assert_eq!(fields.opt_u32_list("many", 2).unwrap(), Some(vec![1, 2]));
    assert_eq!(fields.opt_f32_list("thetas", 2, 0.0..=1e9).unwrap(), Some(vec![500000.0, 0.0]));
    assert_eq!(fields.opt_str_list("names", 2).unwrap(), Some(vec!["a", "b"]));
    let deeper = fields.object("inner").unwrap().unwrap().object("deeper").unwrap().unwrap();
    assert_eq!(deeper.opt_usize("n", 0..=1).unwrap(), Some(1));
    assert_eq!(deeper.keys().collect::<Vec<_>>(), ["n"]);
    for key in ["nothing", "absent"] {
        assert_eq!(fields.opt_usize(key, 1..=7).unwrap(), None);
        assert_eq!(fields.opt_f32(key, 1.0..=7.0).unwrap(), None);
        assert_eq!(fields.opt_bool(key).unwrap(), None);
        assert_eq!(fields.opt_str(key).unwrap(), None);
        assert_eq!(fields.opt_u32_list(key, 9).unwrap(), None);
        assert_eq!(fields.opt_f32_list(key, 9, 0.0..=1.0).unwrap(), None);
        assert_eq!(fields.opt_str_list(key, 9).unwrap(), None);
        assert!(fields.object(key).unwrap().is_none());
        assert!(matches!(fields.invalid(key, "a number"), Error::Missing { .. }));
    }
}

#[test]
fn messages_name_file_field_expected_and_found() {
    let map = map(json!({"text_config": {
        "n": -1, "fraction": 2048.5, "whole": 2048.0, "text": "7", "big": 65537, "huge": 1e300, "tiny": 1e-50,
        "list": [1, "x"], "long": [1, 2, 3], "floats": [0.5, 1e39], "names": ["a", null], "object": {},
        "line\nbreak": 1, "essay": "word ".repeat(1000)
    }}));
    let fields = Fields::new("config.json", &map).object("text_config").unwrap().unwrap();
    let integer = |key: &str| message(fields.opt_usize(key, 1..=65536));
    let field = |key: &str, rest: &str| format!("config.json: field `text_config.{key}`: expected {rest}");
    let range = "an integer from 1 to 65536, found";
    assert_eq!(integer("n"), field("n", &format!("{range} -1")));
    assert_eq!(integer("fraction"), field("fraction", &format!("{range} 2048.5")));
    assert_eq!(integer("whole"), field("whole", &format!("{range} 2048.0")));
    assert_eq!(integer("text"), field("text", &format!("{range} \"7\"")));
    assert_eq!(integer("big"), field("big", &format!("{range} 65537")));
    assert_eq!(integer("object"), field("object", &format!("{range} an object")));
    let number = |key: &str| message(fields.opt_f32(key, 1e-12..=1.0));
    assert_eq!(
        number("huge"),
        field("huge", "a number from 1e-12 to 1.0, found 1e+300").replace("1e+300", &json!(1e300).to_string())
    );
    assert!(number("tiny").ends_with("found 1e-50"));
    assert!(number("n").ends_with("found -1"));
    assert_eq!(message(fields.opt_bool("n")), field("n", "true or false, found -1"));
    assert_eq!(message(fields.opt_str("n")), field("n", "a string, found -1"));
    assert_eq!(message(fields.object("n")), field("n", "an object, found -1"));
    let u32s = "a list of at most 2 integers from 0 to 4294967295, found";
    assert_eq!(message(fields.opt_u32_list("list", 2)), field("list[1]", &format!("{u32s} \"x\"")));
    assert_eq!(message(fields.opt_u32_list("long", 2)), field("long", &format!("{u32s} [1,2,3]")));
    assert_eq!(message(fields.opt_u32_list("n", 2)), field("n", &format!("{u32s} -1")));
    assert!(message(fields.opt_f32_list("floats", 2, 0.0..=f32::MAX)).contains("`text_config.floats[1]`"));
    assert_eq!(message(fields.opt_str_list("names", 2)), field("names[1]", "a list of at most 2 strings, found null"));
    assert!(message(fields.opt_bool("line\nbreak")).contains(r"`text_config.line\nbreak`"));
    let essay = message(fields.opt_bool("essay"));
    assert!(essay.len() < 300 && essay.contains('…'), "{essay}");
    assert_eq!(fields.invalid("big", "a multiple of 128").to_string(), field("big", "a multiple of 128, found 65537"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::from),
            prop::collection::vec(("[a-c\n]?", inner), 0..4).prop_map(|e| Value::Object(e.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_config_makes_it_panic(value in any_json(), max in 0usize..20) {
        let map: Map<String, Value> = [("key".to_string(), value.clone())].into_iter().collect();
        let fields = Fields::new("config.json", &map);
        let mut errors = vec![
            fields.opt_usize("key", 1..=max).map(|n| assert!(n.is_none_or(|n| n >= 1 && n <= max))).err(),
            fields.opt_u32("key", 1..=9).err().or_else(|| Some(fields.invalid("key", "another"))),
            fields.opt_f32("key", 0.0..=f32::MAX).map(|x| assert!(x.is_none_or(f32::is_finite))).err(),
            fields.opt_bool("key").err(),
            fields.opt_str("key").err(),
            fields.opt_u32_list("key", max).err(),
            fields.opt_f32_list("key", max, -1.0..=1.0).err(),
            fields.opt_str_list("key", max).err(),
        ];
        match fields.object("key") {
            Ok(inner) => inner.iter().for_each(|f| errors.extend(f.keys().map(|k| f.opt_bool(k).err()))),
            Err(e) => errors.push(Some(e)),
        }
        for message in errors.into_iter().flatten().map(|e| e.to_string()) {
            prop_assert!(message.starts_with("config.json: field `key"), "{message}");
            prop_assert!(!message.contains(char::is_control) && message.chars().count() < 500, "{message}");
        }
    }
}
