// Elements of the page by their ids, and new ones.

export const at = id => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
}

export const button = (textContent, onclick) => make("button", { type: "button", textContent, onclick });

// a screen reader says it when it has said what it is saying
export const say = text => {
    at("spoken").textContent = text;
};
