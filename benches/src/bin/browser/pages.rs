//! Pages that are larger than those of MiniWoB++: an inbox, a shop, a table, a form, a front page, a manual, an application that
//! wraps everything in boxes. Made by the number of their entries, alike in every run.

use std::fmt::Write;

const STYLE: &str = "<meta name=viewport content='width=device-width'><style>
  body { font: 15px/1.4 sans-serif; margin: 0 } header, footer, nav, main, aside { padding: 8px 16px }
  nav a { margin-right: 12px } table { border-collapse: collapse } td, th { padding: 4px 8px; border-bottom: 1px solid #ddd }
  .grid { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px } .card { border: 1px solid #ccc; padding: 8px }
  .row { display: flex; gap: 10px; padding: 6px; border-bottom: 1px solid #eee } .columns { display: flex; gap: 24px }
</style>";
const WORDS: [&str; 24] = [
    "river", "copper", "lantern", "meadow", "signal", "harbour", "velvet", "granite", "orchard", "compass",
    "thunder", "pepper", "window", "marble", "feather", "engine", "saddle", "winter", "candle", "bridge",
    "garden", "anchor", "pocket", "mirror",
];

/// Some words, alike for the same number.
fn words(number: usize, count: usize) -> String {
    let word = |at: usize| WORDS[(number * 7 + at * 5 + number / 24) % WORDS.len()];
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><title>{title}</title>{STYLE}</head><body>{body}</body></html>"
    )
}

fn menu(count: usize) -> String {
    let links = (0..count).map(|at| format!("<li><a href='/go?{at}'>{}</a></li>", words(at + 300, 1)));
    format!(
        "<header><a href='/'><img alt='Home' width=80 height=24></a><nav aria-label=Main><ul class=columns>{}</ul></nav>\
         <form role=search><input type=search placeholder='Search' aria-label='Search the site'><button>Search</button></form></header>",
        links.collect::<String>()
    )
}

/// Every page: its path and its HTML.
pub(crate) fn all() -> Vec<(&'static str, String)> {
    vec![
        ("/inbox", inbox(60)),
        ("/shop", shop(80)),
        ("/table", table(200)),
        ("/form", form(40)),
        ("/front", front(120)),
        ("/manual", manual(40)),
        ("/boxes", boxes(60)),
    ]
}

fn inbox(mails: usize) -> String {
    let mut rows = String::new();
    for at in 0..mails {
        write!(
            rows,
            "<div class=row role=row><input type=checkbox aria-label='Select {subject}'><button aria-label='Star {subject}' aria-pressed=false>*</button>\
             <span>{}</span><a href='/mail?{at}'>{subject}</a><span>{}</span><time>{} May</time></div>",
            words(at + 11, 2),
            words(at + 99, 9),
            at % 30 + 1,
            subject = words(at, 4),
        )
        .expect("text");
    }
    let folders: String = ["Inbox", "Starred", "Sent", "Drafts", "Archive", "Spam", "Bin"]
        .map(|name| format!("<li><a href='#{name}'>{name}</a></li>"))
        .concat();
    page(
        "Inbox",
        &format!(
            "{}<div class=columns><aside><button>Compose</button><ul>{folders}</ul></aside><main><div role=toolbar aria-label=Mail>\
             <button>Archive</button><button>Delete</button><button>Mark as read</button></div><div role=grid aria-label=Mails>{rows}</div></main></div>",
            menu(4)
        ),
    )
}

fn shop(products: usize) -> String {
    let mut cards = String::new();
    for at in 0..products {
        write!(
            cards,
            "<article class=card><a href='/product?{at}'><img alt='{name}' width=120 height=80></a><h3><a href='/product?{at}'>{name}</a></h3>\
             <div><span>{}.99 EUR</span> <span>{} of 5 ({} reviews)</span></div><p>{}</p><button class=step>Add to cart</button></article>",
            at * 3 % 90 + 5,
            at % 5 + 1,
            at * 37 % 900,
            words(at + 40, 12),
            name = words(at + 5, 3),
        )
        .expect("text");
    }
    let filters: String = (0..12)
        .map(|at| format!("<li><label><input type=checkbox> {}</label></li>", words(at + 70, 2)))
        .collect();
    page(
        "Shop",
        &format!(
            "{}<div class=columns><aside><h2>Filters</h2><ul>{filters}</ul></aside><main><h1>Products</h1><div class=grid>{cards}</div></main></div>\
             <p id=cart role=status>Cart: 0</p><script>let count = 0; addEventListener('click', event => {{ if (event.target.matches('.step')) \
             document.querySelector('#cart').textContent = 'Cart: ' + ++count + ' ' + (event.target.dataset.count = count) }})</script>",
            menu(9)
        ),
    )
}

fn table(orders: usize) -> String {
    let mut rows = String::new();
    for at in 0..orders {
        write!(
            rows,
            "<tr><th scope=row><a href='/order?{at}'>#{}</a></th><td>{}</td><td>{}</td><td>{}.50</td><td>{}</td><td>2026-0{}-1{}</td>\
             <td><button>Edit</button></td><td><button>Delete</button></td></tr>",
            10_000 + at,
            words(at, 2),
            words(at + 31, 3),
            at * 13 % 500,
            ["paid", "open", "late"][at % 3],
            at % 9 + 1,
            at % 9,
        )
        .expect("text");
    }
    let head: String = ["Order", "Customer", "Items", "Sum", "State", "Date"]
        .map(|name| format!("<th><button>{name}</button></th>"))
        .concat();
    page(
        "Orders",
        &format!(
            "{}<main><h1>Orders</h1><table><thead><tr>{head}<th>Edit</th><th>Delete</th></tr></thead><tbody>{rows}</tbody></table></main>",
            menu(6)
        ),
    )
}

fn form(groups: usize) -> String {
    let mut fields = String::new();
    for at in 0..groups {
        let options: String =
            (0..25).map(|option| format!("<option>{}</option>", words(option + at, 2))).collect();
        write!(
            fields,
            "<fieldset><legend>{}</legend><label>{} <input name=a{at} required></label> <label>{} <select name=b{at}>{options}</select></label>\
             <label><input type=checkbox name=c{at}> {}</label></fieldset>",
            words(at, 2),
            words(at + 3, 2),
            words(at + 6, 2),
            words(at + 9, 4),
        )
        .expect("text");
    }
    page(
        "Application",
        &format!("{}<main><h1>Application</h1><form>{fields}<button>Send</button></form></main>", menu(5)),
    )
}

fn front(articles: usize) -> String {
    let mut stories = String::new();
    for at in 0..articles {
        write!(
            stories,
            "<article class=card><h2><a href='/story?{at}'>{}</a></h2><p>{}</p><span>{} min</span> <a href='/author?{at}'>{}</a></article>",
            words(at, 7),
            words(at + 17, 24),
            at % 9 + 2,
            words(at + 2, 2),
        )
        .expect("text");
    }
    let footer: String =
        (0..40).map(|at| format!("<li><a href='/about?{at}'>{}</a></li>", words(at + 8, 2))).collect();
    page(
        "Front page",
        &format!(
            "{}<main><h1>Today</h1><div class=grid>{stories}</div></main><footer><ul>{footer}</ul></footer><div role=dialog aria-label=Cookies \
             style='position:fixed;bottom:0;left:0;right:0;background:#eee;padding:16px'><p>We would like to store cookies.</p>\
             <button>Accept all</button><button>Refuse</button><a href='/cookies'>Settings</a></div>",
            menu(14)
        ),
    )
}

fn manual(sections: usize) -> String {
    let contents: String =
        (0..sections).map(|at| format!("<li><a href='#s{at}'>{}</a></li>", words(at, 3))).collect();
    let text: String = (0..sections)
        .map(|at| {
            format!(
                "<h2 id=s{at}>{}</h2><p>{}</p><pre><code>let {} = {};</code></pre><p>{} <a href='#s{}'>{}</a>.</p>",
                words(at, 3),
                words(at + 50, 60),
                words(at, 1),
                at * 17,
                words(at + 80, 40),
                (at + 1) % sections,
                words(at + 1, 3),
            )
        })
        .collect();
    page(
        "Manual",
        &format!(
            "{}<div class=columns><nav aria-label=Contents><ul>{contents}</ul></nav><main><h1>Manual</h1>{text}</main></div>",
            menu(6)
        ),
    )
}

/// As frameworks write pages: boxes in boxes, and things to click that only a listener tells of.
fn boxes(items: usize) -> String {
    let entries: String = (0..items)
        .map(|at| {
            format!(
                "<div><div><div><div class=row><div><span><span>{}</span></span></div><div><div class=open tabindex=0 role=button><div><span>{}</span></div></div></div>\
                 <div><div class=more style='cursor:pointer'><span>{}</span></div></div></div></div></div></div>",
                words(at + 33, 6),
                words(at, 3),
                words(at + 61, 2),
            )
        })
        .collect();
    page(
        "Boxes",
        &format!(
            "{}<div><div><main><div><h1>Boxes</h1><div>{entries}</div></div></main></div></div><script>for (const each of document.querySelectorAll('.more')) \
             each.addEventListener('click', () => each.textContent += '!')</script>",
            menu(7)
        ),
    )
}
