//! What the help says.

use crate::support::glimmer;

#[test]
fn help_is_as_reviewed() {
    for (name, args) in [
        ("glimmer", &["--help"][..]),
        ("run", &["run", "--help"]),
        ("run_short", &["run", "-h"]),
        ("inspect", &["inspect", "--help"]),
        ("quantize", &["quantize", "--help"]),
        ("bench", &["bench", "--help"]),
        ("bench_step", &["bench", "step", "--help"]),
        ("pair_make", &["pair", "make", "--help"]),
        ("tune", &["tune", "--help"]),
        ("pull", &["pull", "--help"]),
        ("list", &["list", "--help"]),
        ("rm", &["rm", "--help"]),
    ] {
        let ran = glimmer(args);
        assert_eq!(ran.err, "");
        insta::assert_snapshot!(name, ran.ok());
    }
    let nothing = glimmer(&[]);
    assert_eq!((nothing.code, nothing.out.as_str(), nothing.err), (Some(2), "", glimmer(&["--help"]).ok()));
    assert_eq!(glimmer(&["--version"]).ok(), format!("glimmer {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        assert!(glimmer(&["completions", shell]).ok().contains("draft-width"), "{shell}");
    }
}
