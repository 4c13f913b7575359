//! Markup: tags are literals of this program, everything else is escaped, so that no text of a page, a model or a plugin becomes
//! markup. Above that the page's own policy (`Content-Security-Policy`) allows one script, by its nonce, and nothing from the network.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use espalier_core::image::ImageKind;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Markup under construction.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// A tag with its attributes: `div class=facts`.
    pub(super) fn open(&mut self, tag: &'static str) -> &mut Html {
        self.0.push('<');
        self.0.push_str(tag);
        self.0.push('>');
        self
    }

    pub(super) fn close(&mut self, name: &'static str) -> &mut Html {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push_str(">\n");
        self
    }

    /// A text, escaped. Characters that nobody sees, and those that turn the direction of what follows, are shown by their number.
    pub(super) fn text(&mut self, text: &str) -> &mut Html {
        for char in text.chars() {
            match char {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(char),
                '\r' => {}
                '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    self.number_of(char);
                }
                control if control.is_control() => self.number_of(control),
                other => self.0.push(other),
            }
        }
        self
    }

    fn number_of(&mut self, char: char) {
        let _ = write!(self.0, "\\u{{{:x}}}", u32::from(char));
    }

    /// A whole element: the tag with its attributes, and its text.
    pub(super) fn element(&mut self, tag: &'static str, text: &str) -> &mut Html {
        let name = tag.split(' ').next().unwrap_or(tag);
        self.open(tag).text(text).close(name)
    }

    /// The section of a step, which links lead to.
    pub(super) fn section(&mut self, place: usize) {
        let _ = write!(self.0, "<section id=s{place} class=scene>");
    }

    /// A link to the section of a step.
    pub(super) fn link(&mut self, place: usize, class: &'static str, title: &str, text: &str) {
        let _ = write!(self.0, "<a href=#s{place} {class} title=\"");
        self.text(title).0.push_str("\">");
        self.text(text).close("a");
    }

    pub(super) fn image(&mut self, kind: ImageKind, bytes: &[u8]) {
        let _ = write!(self.0, "<img alt=\"screenshot\" src=\"data:{};base64,", kind.media_type());
        STANDARD.encode_string(bytes, &mut self.0);
        self.0.push_str("\">");
    }

    /// A rectangle over a picture, in shares of its size.
    pub(super) fn box_mark(&mut self, left: f64, top: f64, width: f64, height: f64) {
        let (left, top, width, height) = (percent(left), percent(top), percent(width), percent(height));
        let _ = write!(
            self.0,
            "<i class=box style=\"left:{left}%;top:{top}%;width:{width}%;height:{height}%\"></i>"
        );
    }

    /// A point over a picture, in shares of its size; with a number where there are several.
    pub(super) fn point_mark(&mut self, x: f64, y: f64, number: Option<usize>) {
        let _ = write!(self.0, "<i class=point style=\"left:{}%;top:{}%\">", percent(x), percent(y));
        if let Some(number) = number {
            let _ = write!(self.0, "<b>{number}</b>");
        }
        self.0.push_str("</i>");
    }

    /// A line between two points over a picture, with its end marked.
    pub(super) fn drag_mark(&mut self, from: (f64, f64), to: (f64, f64)) {
        let _ = write!(
            self.0,
            "<svg viewBox=\"0 0 100 100\" preserveAspectRatio=none><line x1={} y1={} x2={} y2={} /></svg>",
            percent(from.0),
            percent(from.1),
            percent(to.0),
            percent(to.1)
        );
        let _ =
            write!(self.0, "<i class=target style=\"left:{}%;top:{}%\"></i>", percent(to.0), percent(to.1));
    }
}

/// A share as a percentage that CSS and SVG read; marks outside of a picture are at its border.
fn percent(share: f64) -> f64 {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    (share * 10_000.0).round() / 100.0
}

/// The whole page.
pub(super) fn page(title: &str, body: &Html) -> String {
    // Who writes a text of the record cannot know the nonce: it follows from all of the page.
    let nonce = blake3::hash(body.0.as_bytes()).to_hex();
    let nonce = &nonce[..32];
    let mut head = Html::default();
    head.0.push_str("<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n");
    let _ = writeln!(
        head.0,
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
         script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'\">"
    );
    head.0.push_str("<meta name=viewport content=\"width=device-width\">\n");
    head.element("title", title);
    let Html(mut page) = head;
    page.push_str("<style>\n");
    page.push_str(STYLE);
    page.push_str("</style></head><body>\n");
    page.push_str(&body.0);
    let _ = writeln!(page, "<script nonce={nonce}>\n{SCRIPT}</script></body></html>");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let mut out = Html::default();
        out.element("p class=a", "</p><script>x('&')</script>\"\u{202e}\u{0}\u{1b}[2J\r\n\tend");
        assert_eq!(
            out.0,
            "<p class=a>&lt;/p&gt;&lt;script&gt;x(&#39;&amp;&#39;)&lt;/script&gt;&quot;\\u{202e}\\u{0}\\u{1b}[2J\n\tend</p>\n"
        );
        let mut out = Html::default();
        out.link(3, "class=step", "\" onclick=x", "<b>");
        assert_eq!(out.0, "<a href=#s3 class=step title=\"&quot; onclick=x\">&lt;b&gt;</a>\n");
    }

    #[test]
    fn marks_stay_on_the_picture() {
        let mut out = Html::default();
        out.point_mark(f64::NAN, 7.0, None);
        out.box_mark(0.123_456, -1.0, f64::INFINITY, 0.5);
        assert_eq!(
            out.0,
            "<i class=point style=\"left:0%;top:100%\"></i>\
             <i class=box style=\"left:12.35%;top:0%;width:0%;height:50%\"></i>"
        );
    }
}
