import { begin, field, make, operate, redraw, values } from "./session.js";

const SHIPPING = { standard: 4.9, express: 12.5 };

// What is shown; cart, wishes and orders are the session's.
const view = { category: "All", sort: "name", search: "", checkout: null };

const money = (amount) => `${amount.toFixed(2)} €`;
const sum = (cart) => Object.values(cart).reduce((total, line) => total + line.quantity * line.price, 0);

function filters(state) {
  const categories = ["All", ...new Set(Object.values(state.products).map((product) => product.category))];
  const choose = (change) => () => { Object.assign(view, change); redraw(); };
  const sorts = { name: "Name", price: "Lowest price", rating: "Best rated" };
  const search = make("input", {
    type: "search", "aria-label": "Search", placeholder: "Search products", value: view.search,
    onchange: (event) => { view.search = event.target.value; redraw(); },
  });
  return make("div", { class: "card" },
    make("label", { class: "field" }, search),
    make("div", { class: "row", role: "group", "aria-label": "Category" },
      ...categories.map((category) => make("button", {
        "aria-current": String(view.category === category), onclick: choose({ category }),
      }, category))),
    make("p", { class: "soft" }, "Sort by"),
    make("div", { class: "row", role: "group", "aria-label": "Sort by" },
      ...Object.entries(sorts).map(([sort, label]) => make("button", {
        "aria-current": String(view.sort === sort), onclick: choose({ sort }),
      }, label))));
}

function products(state) {
  const orders = {
    name: ([, one], [, other]) => one.name.localeCompare(other.name),
    price: ([, one], [, other]) => one.price - other.price,
    rating: ([, one], [, other]) => other.rating - one.rating,
  };
  const wanted = view.search.toLowerCase();
  const found = Object.entries(state.products)
    .filter(([, product]) => view.category === "All" || product.category === view.category)
    .filter(([, product]) => `${product.name} ${product.about}`.toLowerCase().includes(wanted))
    .sort(orders[view.sort]);
  return make("section", { class: "products", "aria-label": "Products" }, ...found.map(([id, product]) => {
    const { name, price, rating, stock, about } = product;
    const wished = id in state.wishlist;
    return make("article", { class: "card product", "aria-label": name },
      make("h3", {}, name),
      make("p", { class: "soft" }, about),
      make("p", {}, make("span", { class: "price" }, money(price)), " ", make("span", { class: "stars" }, `★ ${rating}`)),
      make("p", { class: "soft" }, stock > 0 ? `${stock} in stock` : "Sold out"),
      make("div", { class: "row" },
        stock > 0 && make("button", {
          class: "main", "aria-label": `Add ${name} to cart`,
          onclick: () => operate("put_in_cart", { product: id, quantity: (state.cart[id]?.quantity ?? 0) + 1 }, `${name} is in the cart.`),
        }, "Add to cart"),
        make("button", {
          "aria-label": wished ? `Remove ${name} from wishlist` : `Add ${name} to wishlist`,
          onclick: () => operate(wished ? "unwish" : "wish", { product: id }),
        }, wished ? "♥ Wished" : "♡ Wish")));
  }));
}

function cart(state) {
  const lines = Object.entries(state.cart).map(([id, { quantity, price }]) => {
    const { name } = state.products[id];
    const set = (next) => () => operate("put_in_cart", { product: id, quantity: next });
    return make("li", {},
      make("span", {}, `${name} `, make("span", { class: "soft" }, `${quantity} × ${money(price)}`)),
      make("span", { class: "row" },
        quantity > 1 && make("button", { "aria-label": `One ${name} less`, onclick: set(quantity - 1) }, "−"),
        make("button", { "aria-label": `One ${name} more`, onclick: set(quantity + 1) }, "+"),
        make("button", {
          "aria-label": `Remove ${name} from cart`, onclick: () => operate("take_out_of_cart", { product: id }),
        }, "✕")));
  });
  if (lines.length === 0) {
    return make("section", { class: "card", "aria-label": "Cart" }, make("h2", {}, "Cart"), make("p", { class: "soft" }, "The cart is empty."));
  }
  return make("section", { class: "card", "aria-label": "Cart" }, make("h2", {}, "Cart"),
    make("ul", { class: "lines" }, ...lines),
    make("p", {}, "Together: ", make("strong", {}, money(sum(state.cart)))),
    !view.checkout && make("button", { class: "main", onclick: () => { view.checkout = checkout(); redraw(); } }, "Check out"));
}

function checkout() {
  const choice = (value, label) => make("label", { class: "row" },
    make("input", { type: "radio", name: "shipping", value, checked: value === "standard" }), `${label}, ${money(SHIPPING[value])}`);
  const submit = async (event) => {
    event.preventDefault();
    const answer = await operate("order", values(event.target), "Thank you! The order was placed.");
    if (answer) { view.checkout = null; redraw(); }
  };
  return make("form", { class: "card", "aria-label": "Check out", novalidate: true, onsubmit: submit },
    make("h2", {}, "Check out"),
    field("Name", "name"), field("Street", "street"), field("City", "city"),
    make("fieldset", {}, make("legend", {}, "Shipping"), choice("standard", "Standard"), choice("express", "Express")),
    make("div", { class: "row" },
      make("button", { class: "main", type: "submit" }, "Place order"),
      make("button", { type: "button", onclick: () => { view.checkout = null; redraw(); } }, "Cancel")));
}

function orders(state) {
  const all = Object.entries(state.orders);
  return all.length > 0 && make("section", { class: "card", "aria-label": "Orders" }, make("h2", {}, "Orders"),
    ...all.map(([id, order]) => make("p", {}, `Order ${id}: ${money(sum(order.items) + SHIPPING[order.shipping])}, ${order.shipping}, to ${order.city}`)));
}

begin((state) => {
  const count = Object.values(state.cart).reduce((total, line) => total + line.quantity, 0);
  document.getElementById("aside").textContent = count === 1 ? "1 item in the cart" : `${count} items in the cart`;
  const left = make("div", {}, filters(state), make("p", {}, ""), products(state));
  const right = make("aside", {}, ...[cart(state), view.checkout, orders(state)].filter(Boolean));
  document.getElementById("main").replaceChildren(left, right);
});
