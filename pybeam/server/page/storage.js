// The browser keeps this between visits. It may forbid that, and may be full.

const PREFIX = "pybeam.";

export function load(name, otherwise) {
    try {
        return JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise;
    } catch {
        return otherwise;
    }
}

export function save(name, value) {
    try {
        localStorage.setItem(PREFIX + name, JSON.stringify(value));
        return true;
    } catch {
        return false;
    }
}

export function forget(name) {
    try {
        localStorage.removeItem(PREFIX + name);
    } catch {
        /* nothing is kept then */
    }
}
