//! Little-endian fields in a row, written and read back with bounds checked.

/// Appends fields.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    /// A text of at most `limit` bytes; a longer one is cut.
    pub(super) fn text(&mut self, text: &str, limit: usize) {
        let text = clip(text, limit);
        self.u16(text.len() as u16);
        self.raw(text.as_bytes());
    }
    /// A number or nothing.
    pub(super) fn maybe(&mut self, value: Option<usize>) {
        self.u32(value.map_or(u32::MAX, |value| value as u32));
    }
}

/// Takes fields off the front; every read is `None` past the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.raw(N)?.try_into().ok()
    }
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub(super) fn text(&mut self) -> Option<String> {
        let len = self.u16()?;
        Some(printable(self.raw(len.into())?))
    }
}

/// Undoes [`Writer::maybe`].
pub(super) fn known(value: u32) -> Option<usize> {
    (value != u32::MAX).then_some(value as usize)
}

/// The longest start of a text that fits.
pub(super) fn clip(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Text from outside, safe to print on a terminal.
pub(super) fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
