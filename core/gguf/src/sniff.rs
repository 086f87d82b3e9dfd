//! What a file is that is not GGUF: people pass the wrong one, or got an error page instead of a download.

/// A few words about the first bytes.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let head = bytes.get(..512).unwrap_or(bytes);
    const MAGICS: &[(&[u8], &str)] = &[
        (b"PK\x03\x04", "a zip archive (perhaps a PyTorch checkpoint)"),
        (b"\x1f\x8b", "a gzip archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"version https://git-lfs", "a git-lfs pointer, not the model itself"),
        (b"\x7fELF", "a program"),
        (b"lmgg", "an old GGML file, from before GGUF"),
        (b"fmgg", "an old GGMF file, from before GGUF"),
        (b"tjgg", "an old GGJT file, from before GGUF"),
        (b"algg", "an old GGLA adapter, from before GGUF"),
        (b"\x80\x02", "a Python pickle"),
    ];
    if let Some((_, what)) = MAGICS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*what).to_owned();
    }
    // A safetensors file is a u64 length, then that much JSON.
    if head.get(8) == Some(&b'{') && head.get(5..8) == Some(&[0, 0, 0]) {
        return "a safetensors checkpoint; convert it to GGUF first".to_owned();
    }
    // The cut at 512 bytes may split a character, so only an error before the last three counts.
    let text = match std::str::from_utf8(head) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => {
            head.get(..error.valid_up_to()).and_then(|head| std::str::from_utf8(head).ok())
        }
        Err(_) => None,
    };
    if let Some(text) = text
        && !text.chars().any(|c| c.is_control() && !c.is_whitespace())
    {
        let start = text.trim_start();
        return if start.starts_with('<') {
            "an HTML or XML page".to_owned()
        } else if start.starts_with('{') {
            "a JSON file".to_owned()
        } else {
            "a text file".to_owned()
        };
    }
    if head.iter().all(|&byte| byte == 0) {
        return "zeros (perhaps an unfinished download)".to_owned();
    }
    let hex: Vec<String> = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("unknown data (first bytes {})", hex.join(" "))
}
