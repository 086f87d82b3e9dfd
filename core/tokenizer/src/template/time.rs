//! A moment as a calendar shows it, formatted as Python's `strftime` does in the C locale.

use std::fmt::Write;

/// A date and time of day where the user is. The caller reads the clock; this crate never does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, such as 2026.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    /// Day of the year, from 1.
    fn day_of_year(&self) -> u32 {
        let before: u32 = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]
            .iter()
            .take(usize::from(self.month.saturating_sub(1)))
            .sum();
        before + u32::from(self.month > 2 && self.is_leap()) + u32::from(self.day)
    }

    /// Days since Sunday. (Gauss: the first of January by the year, then the day of the year.)
    fn weekday(&self) -> usize {
        let y = i64::from(self.year) - 1;
        let first = 1 + 5 * y.rem_euclid(4) + 4 * y.rem_euclid(100) + 6 * y.rem_euclid(400);
        ((first + i64::from(self.day_of_year()) - 1) % 7) as usize
    }

    /// Formats, or gives the directive that is not known.
    pub(crate) fn format(&self, format: &str) -> Result<String, char> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next().ok_or('%')?;
            // glibc: `-` leaves out the padding.
            let bare = directive == '-';
            if bare {
                directive = chars.next().ok_or('-')?;
            }
            self.directive(directive, bare, &mut out)?;
        }
        Ok(out)
    }

    fn directive(&self, directive: char, bare: bool, out: &mut String) -> Result<(), char> {
        let hour12 = match self.hour % 12 {
            0 => 12,
            hour => hour,
        };
        let month = MONTHS.get(usize::from(self.month.saturating_sub(1))).copied().unwrap_or("");
        let weekday = DAYS.get(self.weekday()).copied().unwrap_or("");
        let short = |name: &'static str| name.get(..3).unwrap_or("");
        let mut number = |value: u32, width: usize| {
            let width = if bare { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            'd' => number(self.day.into(), 2),
            'm' => number(self.month.into(), 2),
            'y' => number(self.year.rem_euclid(100) as u32, 2),
            'H' => number(self.hour.into(), 2),
            'I' => number(hour12.into(), 2),
            'M' => number(self.minute.into(), 2),
            'S' => number(self.second.into(), 2),
            'j' => number(self.day_of_year(), 3),
            'w' => number(self.weekday() as u32, 0),
            'u' => number(if self.weekday() == 0 { 7 } else { self.weekday() as u32 }, 0),
            'f' => number(0, 6),
            'e' => {
                let width = if bare { 0 } else { 2 };
                let _ = write!(out, "{:width$}", self.day);
            }
            'Y' => {
                let _ = write!(out, "{}", self.year);
            }
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(short(month)),
            'A' => out.push_str(weekday),
            'a' => out.push_str(short(weekday)),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'F' => out.push_str(&self.format("%Y-%m-%d")?),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")?),
            'T' | 'X' => out.push_str(&self.format("%H:%M:%S")?),
            'R' => out.push_str(&self.format("%H:%M")?),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")?),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            // A local time without a zone, as in Python.
            'z' | 'Z' => {}
            '%' => out.push('%'),
            other => return Err(other),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_python_does() {
        let at = LocalTime { year: 2026, month: 11, day: 5, hour: 0, minute: 7, second: 9 };
        for (format, expected) in [
            ("%d %b %Y", "05 Nov 2026"),
            ("%Y-%m-%d %H:%M:%S", "2026-11-05 00:07:09"),
            ("%A, %B %-d, %Y %I:%M %p", "Thursday, November 5, 2026 12:07 AM"),
            ("%a %e %j %y %w %u %F %T 100%%", "Thu  5 309 26 4 4 2026-11-05 00:07:09 100%"),
        ] {
            assert_eq!(at.format(format).as_deref(), Ok(expected));
        }
        assert_eq!(at.format("%Q"), Err('Q'));
        assert_eq!(at.format("%"), Err('%'));
    }

    #[test]
    fn weekdays_are_right() {
        for (year, month, day, weekday) in
            [(2000, 1, 1, 6), (2024, 2, 29, 4), (2024, 12, 31, 2), (1900, 3, 1, 4)]
        {
            let at = LocalTime { year, month, day, hour: 0, minute: 0, second: 0 };
            assert_eq!(at.weekday(), weekday, "{year}-{month}-{day}");
        }
        let extreme = LocalTime { year: i32::MIN, month: 255, day: 255, hour: 255, minute: 255, second: 255 };
        assert!(extreme.format("%c %A %B %j %I").is_ok());
    }
}
