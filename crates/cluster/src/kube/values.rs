//! Values as Kubernetes writes them: times and quantities.

/// Seconds since 1970 of an RFC 3339 time in UTC (`2026-01-31T23:59:59Z`, with or without a fraction).
pub fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix(['Z', 'z'])?.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let time = time.split('.').next()?;
    let mut time = time.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid {
        return None;
    }
    // Days of the civil calendar, counted from a year that begins in March: the leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1;
    days.checked_sub(719_468).map(|days| days * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// A quantity (`8`, `900Gi`, `158500m`, `1e3`) in whole units, rounded down.
pub fn quantity(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 14] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("m", 1e-3),
        ("u", 1e-6),
        ("n", 1e-9),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let text = text.trim();
    if let Ok(whole) = text.parse() {
        return Some(whole);
    }
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1.0));
    let value = number.parse::<f64>().ok()? * unit;
    (value.is_finite() && value >= 0.0).then_some(value as u64)
}

/// `PT` of seconds for people: `45 s`, `12 min`, `3 h`, `2 d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        // From `date -u -d ... +%s`.
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-02-29T12:30:15Z"), Some(951_827_415));
        assert_eq!(seconds("2026-03-01T00:00:00.123456Z"), Some(1_772_323_200));
        assert_eq!(seconds("2024-12-31T23:59:59Z"), Some(1_735_689_599));
        for wrong in [
            "",
            "Z",
            "2026-03-01",
            "2026-13-01T00:00:00Z",
            "2026-03-01T25:00:00Z",
            "x-y-zT::Z",
            "1969-01-01T00:00:00Z",
            "2026-03-01T00:00:00+02:00",
        ] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn quantities() {
        assert_eq!(quantity("8"), Some(8));
        assert_eq!(quantity("5120Mi"), Some(5_368_709_120));
        assert_eq!(quantity("158500m"), Some(158));
        assert_eq!(quantity("1e3"), Some(1000));
        assert_eq!(quantity("2k"), Some(2000));
        assert_eq!(quantity(" 4Gi "), Some(4_294_967_296));
        for wrong in ["", "eight", "-1", "NaN", "Gi", "inf"] {
            assert_eq!(quantity(wrong), None, "{wrong}");
        }
    }
}
