// A site has a folder for each version, and beside them `versions.json`, the newest first.
addEventListener('load', async () => {
    const place = document.querySelector('.versions'), select = place?.querySelector('select');
    if (!select || location.protocol === 'file:') return;
    const here = new URL(document.documentElement.dataset.content_root, location.href);
    const page = location.href.slice(here.href.length);
    const answer = await fetch(new URL('../versions.json', here)).catch(() => null);
    if (!answer?.ok) return;
    for (const name of await answer.json()) {
        const isThis = here.pathname.endsWith(`/${name}/`);
        select.append(new Option(name, new URL(`../${name}/`, here), isThis, isThis));
    }
    select.addEventListener('change', async () => {
        const there = await fetch(select.value + page, {method: 'HEAD'}).catch(() => null);
        location.assign(there?.ok ? select.value + page : select.value);
    });
    place.hidden = false;
});
