//! What memory the machine has, where the system says so.

/// Bytes that can still be had without pushing anything out, swap included; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |key: &str| field(&info, key);
    let free = (kib("MemAvailable:")? + kib("SwapFree:").unwrap_or(0)) * 1024;
    Some(cgroup_room().map_or(free, |room| room.min(free)))
}

/// The most memory that this process has held at once, in bytes; `None` where the system does not say.
pub fn peak() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// What the control group leaves, if it has a limit.
fn cgroup_room() -> Option<u64> {
    let number =
        |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}
