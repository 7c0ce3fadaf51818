//! `strftime_now` of chat templates: the C function's directives, in the C locale, for a time without a zone.

use time::PrimitiveDateTime;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// Formats `t`. What is not a directive stays as it is.
pub(super) fn strftime(t: PrimitiveDateTime, format: &str) -> String {
    let mut out = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut rest = chars.clone();
        let mut pad = None;
        let mut directive = rest.next();
        // glibc's flags: `-` no padding, `_` spaces, `0` zeros, `^` capitals.
        while let Some(flag @ ('-' | '_' | '0' | '^')) = directive {
            pad = Some(flag);
            directive = rest.next();
        }
        match directive.and_then(|d| field(t, d, pad)) {
            Some(text) => {
                out.push_str(&text);
                chars = rest;
            }
            None => out.push('%'),
        }
    }
    out
}

fn field(t: PrimitiveDateTime, directive: char, flag: Option<char>) -> Option<String> {
    let number = |value: i64, width: usize, fill: char| match (flag, fill) {
        (Some('-'), _) => value.to_string(),
        (Some('_'), _) | (None | Some('^'), ' ') => format!("{value:>width$}"),
        _ => format!("{value:0width$}"),
    };
    let word = |text: &str| if flag == Some('^') { text.to_uppercase() } else { text.to_owned() };
    let weekday = t.weekday().number_days_from_sunday();
    let day_name = DAYS[usize::from(weekday)];
    let month_name = MONTHS[usize::from(u8::from(t.month())) - 1];
    let hour12 = match t.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    let (iso_year, iso_week, _) = t.to_iso_week_date();
    let year = i64::from(t.year());
    Some(match directive {
        'Y' => number(year, 1, '0'),
        'C' => number(year.div_euclid(100), 2, '0'),
        'y' => number(year.rem_euclid(100), 2, '0'),
        'm' => number(i64::from(u8::from(t.month())), 2, '0'),
        'd' => number(i64::from(t.day()), 2, '0'),
        'e' => number(i64::from(t.day()), 2, ' '),
        'j' => number(i64::from(t.ordinal()), 3, '0'),
        'H' => number(i64::from(t.hour()), 2, '0'),
        'k' => number(i64::from(t.hour()), 2, ' '),
        'I' => number(i64::from(hour12), 2, '0'),
        'l' => number(i64::from(hour12), 2, ' '),
        'M' => number(i64::from(t.minute()), 2, '0'),
        'S' => number(i64::from(t.second()), 2, '0'),
        'f' => format!("{:06}", t.microsecond()),
        'u' => t.weekday().number_from_monday().to_string(),
        'w' => weekday.to_string(),
        'U' => number(i64::from(t.sunday_based_week()), 2, '0'),
        'W' => number(i64::from(t.monday_based_week()), 2, '0'),
        'V' => number(i64::from(iso_week), 2, '0'),
        'G' => iso_year.to_string(),
        'g' => number(i64::from(iso_year).rem_euclid(100), 2, '0'),
        'a' => word(&day_name[..3]),
        'A' => word(day_name),
        'b' | 'h' => word(&month_name[..3]),
        'B' => word(month_name),
        'p' => if t.hour() < 12 { "AM" } else { "PM" }.to_owned(),
        'P' => if t.hour() < 12 { "am" } else { "pm" }.to_owned(),
        'D' | 'x' => strftime(t, "%m/%d/%y"),
        'F' => strftime(t, "%Y-%m-%d"),
        'T' | 'X' => strftime(t, "%H:%M:%S"),
        'R' => strftime(t, "%H:%M"),
        'r' => strftime(t, "%I:%M:%S %p"),
        'c' => strftime(t, "%a %b %e %H:%M:%S %Y"),
        's' => t.assume_utc().unix_timestamp().to_string(),
        'z' | 'Z' => String::new(),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::strftime;

    /// Expected values: Python 3, `datetime(2025, 3, 9, 7, 5, 2).strftime(…)`.
    #[test]
    fn formats_as_python_does() {
        let t = datetime!(2025-03-09 07:05:02);
        for (format, expected) in [
            ("%Y-%m-%d", "2025-03-09"),
            ("%d %b %Y", "09 Mar 2025"),
            ("%B %d, %Y", "March 09, 2025"),
            ("%A, %-d %B %Y, %-I:%M %p", "Sunday, 9 March 2025, 7:05 AM"),
            ("%e|%j|%y|%H:%M:%S|%f", " 9|068|25|07:05:02|000000"),
            ("%c", "Sun Mar  9 07:05:02 2025"),
            ("%x %X %D %T %F %R", "03/09/25 07:05:02 03/09/25 07:05:02 2025-03-09 07:05"),
            ("%u %w %U %W %V %G", "7 0 10 09 10 2025"),
            ("[%Z%z] 100%% %a", "[] 100% Sun"),
            ("%^a %^B", "SUN MARCH"),
            ("日付 %Y年%m月", "日付 2025年03月"),
        ] {
            assert_eq!(strftime(t, format), expected, "{format}");
        }
    }

    #[test]
    fn what_is_no_directive_stays() {
        let t = datetime!(2025-03-09 19:05:02);
        assert_eq!(strftime(t, "50% %Q %"), "50% %Q %");
        assert_eq!(strftime(t, "%I %l %k %P"), "07  7 19 pm");
    }
}
