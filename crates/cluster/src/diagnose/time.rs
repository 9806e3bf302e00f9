//! Timestamps of log lines.

/// A clock that times compare within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// Seconds since 1970, by the zone that is written.
    Zoned,
    /// Seconds since 1970 as if it were UTC: no zone is written.
    Date,
    /// The year is not written: seconds since the start of the year.
    Yearless,
    /// Seconds since midnight.
    Day,
    /// Seconds since the kernel started.
    Kernel,
}

/// A time, as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stamp {
    /// Seconds of the clock.
    pub(super) seconds: f64,
    /// The clock.
    pub(super) clock: Clock,
    /// The year, where written.
    pub(super) year: Option<i64>,
}

const DAY: f64 = 86_400.0;
const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];

/// Days from 1970-01-01 to a date of the Gregorian calendar (the usual count of days from civil dates, with years that start in March).
pub(super) fn days(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// A cursor over bytes.
struct At<'a> {
    text: &'a [u8],
    at: usize,
}

impl At<'_> {
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn eat(&mut self, any: &[u8]) -> Option<u8> {
        let byte = self.peek();
        (byte != 0 && any.contains(&byte)).then(|| {
            self.at += 1;
            byte
        })
    }

    /// Between `least` and `most` digits as a number.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits =
            self.text.get(self.at..)?.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        if digits < least {
            return None;
        }
        let mut value = 0_i64;
        for byte in &self.text[self.at..self.at + digits] {
            value = value * 10 + i64::from(byte - b'0');
        }
        self.at += digits;
        Some(value)
    }

    /// `.123` or `,123` as a fraction of one.
    fn fraction(&mut self) -> f64 {
        let here = self.at;
        if self.eat(b".,").is_none() {
            return 0.0;
        }
        let (mut value, mut scale) = (0.0, 0.1);
        let first = self.at;
        while self.peek().is_ascii_digit() {
            value += f64::from(self.peek() - b'0') * scale;
            scale /= 10.0;
            self.at += 1;
        }
        if self.at == first {
            self.at = here;
        }
        value
    }

    /// `12:00:00.123` as seconds since midnight.
    fn clock(&mut self) -> Option<f64> {
        let hour = self.number(2, 2)?;
        self.eat(b":")?;
        let minute = self.number(2, 2)?;
        self.eat(b":")?;
        let second = self.number(2, 2)?;
        if hour > 24 || minute > 59 || second > 60 || self.peek() == b':' {
            return None;
        }
        Some((hour * 3600 + minute * 60 + second) as f64 + self.fraction())
    }

    /// `Z`, `+02:00`, `-0700` in seconds, if there.
    fn zone(&mut self) -> Option<f64> {
        let here = self.at;
        if self.eat(b"Z").is_some() {
            return Some(0.0);
        }
        let sign = match self.eat(b"+-")? {
            b'-' => -1.0,
            _ => 1.0,
        };
        let offset = self.number(2, 2).and_then(|hours| {
            let _ = self.eat(b":");
            let minutes = self.number(2, 2)?;
            (hours <= 14 && minutes < 60 && !self.peek().is_ascii_digit())
                .then_some(hours * 3600 + minutes * 60)
        });
        if let Some(offset) = offset {
            Some(sign * offset as f64)
        } else {
            self.at = here;
            None
        }
    }
}

fn dated(year: i64, month: i64, day: i64, seconds: f64) -> Option<Stamp> {
    ((1..=12).contains(&month) && (1..=31).contains(&day) && (1970..=2200).contains(&year)).then(|| Stamp {
        seconds: days(year, month, day) as f64 * DAY + seconds,
        clock: Clock::Date,
        year: Some(year),
    })
}

fn yearless(month: i64, day: i64, seconds: f64) -> Option<Stamp> {
    // A leap year, so that the 29th of February has its place.
    ((1..=12).contains(&month) && (1..=31).contains(&day)).then(|| Stamp {
        seconds: (days(2024, month, day) - days(2024, 1, 1)) as f64 * DAY + seconds,
        clock: Clock::Yearless,
        year: None,
    })
}

/// A time without a year, in seconds since 1970, given the year.
pub(super) fn in_year(seconds: f64, year: i64) -> f64 {
    let start = days(year, 1, 1) as f64 * DAY;
    let leap = days(year, 3, 1) - days(year, 2, 28) == 2;
    // The count was made in a leap year.
    let shift = if !leap && seconds >= 59.0 * DAY + DAY { DAY } else { 0.0 };
    start + seconds - shift
}

/// The timestamp at the very start of `text`, and how many bytes it takes.
pub(super) fn parse(text: &[u8]) -> Option<(Stamp, usize)> {
    let first = *text.first()?;
    if first.is_ascii_digit() {
        numeric(text)
    } else if first.is_ascii_uppercase() {
        named(text)
    } else {
        None
    }
}

fn numeric(text: &[u8]) -> Option<(Stamp, usize)> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let next = text.get(digits).copied().unwrap_or(0);
    let mut at = At { text, at: 0 };
    let stamp = match (digits, next) {
        (4, b'-' | b'/') => {
            let year = at.number(4, 4)?;
            at.eat(b"-/")?;
            let month = at.number(2, 2)?;
            at.eat(b"-/")?;
            let day = at.number(2, 2)?;
            at.eat(b"T _:")?;
            let seconds = at.clock()?;
            let zone = at.zone();
            let stamp = dated(year, month, day, seconds - zone.unwrap_or(0.0))?;
            Stamp { clock: if zone.is_some() { Clock::Zoned } else { Clock::Date }, ..stamp }
        }
        (2, b':') => {
            let seconds = at.clock()?;
            Stamp { seconds, clock: Clock::Day, year: None }
        }
        (2, b'/' | b'-') => {
            let month = at.number(2, 2)?;
            at.eat(b"-/")?;
            let day = at.number(2, 2)?;
            // 11/29/2026 12:00:00 and 11/29/26 12:00:00 as well as 11/29 12:00:00.
            if at.eat(b"/").is_some() {
                let year = at.number(2, 4)?;
                at.eat(b" ")?;
                let seconds = at.clock()?;
                dated(if year < 100 { 2000 + year } else { year }, month, day, seconds)?
            } else {
                at.eat(b" ")?;
                let seconds = at.clock()?;
                yearless(month, day, seconds)?
            }
        }
        (10, b'.') => {
            let seconds = at.number(10, 10)?;
            let fraction = at.fraction();
            // Between 2001 and 2100.
            (1_000_000_000..4_102_444_800).contains(&seconds).then_some(Stamp {
                seconds: seconds as f64 + fraction,
                clock: Clock::Zoned,
                year: None,
            })?
        }
        _ => return None,
    };
    Some((stamp, at.at))
}

fn month(text: &[u8]) -> Option<i64> {
    MONTHS.iter().position(|name| text.starts_with(name)).map(|index| index as i64 + 1)
}

fn named(text: &[u8]) -> Option<(Stamp, usize)> {
    // E1129 12:00:00.123456, and with a year E20261129 12:00:00.123456.
    if matches!(text[0], b'E' | b'W' | b'I' | b'F') && text.get(1).is_some_and(u8::is_ascii_digit) {
        let digits = text[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = At { text, at: 1 };
        let year = if digits == 8 { Some(at.number(4, 4)?) } else { None };
        if digits != 4 && digits != 8 {
            return None;
        }
        let month = at.number(2, 2)?;
        let day = at.number(2, 2)?;
        at.eat(b" ")?;
        let seconds = at.clock()?;
        let stamp = match year {
            Some(year) => dated(year, month, day, seconds)?,
            None => yearless(month, day, seconds)?,
        };
        return Some((stamp, at.at));
    }
    let mut at = At { text, at: 0 };
    if DAYS.iter().any(|day| text.starts_with(day)) && text.get(3) == Some(&b' ') {
        at.at = 4;
    }
    let month = month(text.get(at.at..)?)?;
    at.at += 3;
    at.eat(b" ")?;
    let _ = at.eat(b" ");
    let day = at.number(1, 2)?;
    at.eat(b" ")?;
    let seconds = at.clock()?;
    let here = at.at;
    let year = at.eat(b" ").and_then(|_| {
        // `UTC 2026` as date(1) prints it.
        let rest = at.text.get(at.at..)?;
        let zone = rest.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
        if zone > 0 && rest.get(zone) == Some(&b' ') {
            at.at += zone + 1;
        }
        at.number(4, 4).filter(|_| !at.peek().is_ascii_alphanumeric())
    });
    let stamp = if let Some(year) = year.filter(|year| (1970..=2200).contains(year)) {
        dated(year, month, day, seconds)?
    } else {
        at.at = here;
        yearless(month, day, seconds)?
    };
    Some((stamp, at.at))
}

/// Seconds since 1970 without a fraction, before the byte `end`.
pub(super) fn epoch(text: &[u8], end: u8) -> Option<(Stamp, usize)> {
    let mut at = At { text, at: 0 };
    let seconds = at.number(10, 10)?;
    let plausible = (1_000_000_000..4_102_444_800).contains(&seconds) && at.peek() == end;
    plausible.then_some((Stamp { seconds: seconds as f64, clock: Clock::Zoned, year: None }, at.at))
}

/// `[  123.456789]` without the brackets.
pub(super) fn kernel(text: &[u8]) -> Option<Stamp> {
    let text = text.trim_ascii();
    let dot = text.iter().position(|byte| *byte == b'.')?;
    let whole = |part: &[u8]| !part.is_empty() && part.len() < 12 && part.iter().all(u8::is_ascii_digit);
    if !whole(&text[..dot]) || !whole(&text[dot + 1..]) {
        return None;
    }
    let seconds = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Stamp { seconds, clock: Clock::Kernel, year: None })
}
