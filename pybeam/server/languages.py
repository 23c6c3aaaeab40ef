"""The codes and names that LibreTranslate's clients know languages by, whatever a model's files call them."""

from __future__ import annotations

from functools import cache

# ISO 639-1 where there is one; ISO 639-3 as NLLB's files have it; the English name
LANGUAGES = """
af afr Afrikaans|am amh Amharic|ar arb,ara Arabic|ast ast Asturian|az azj,aze Azerbaijani|ba bak Bashkir
be bel Belarusian|bg bul Bulgarian|bn ben Bengali|br bre Breton|bs bos Bosnian|ca cat Catalan|ceb ceb Cebuano
cs ces Czech|cy cym Welsh|da dan Danish|de deu German|el ell Greek|en eng English|eo epo Esperanto
es spa Spanish|et est,ekk Estonian|eu eus Basque|fa pes,fas Persian|ff fuv,ful Fulah|fi fin Finnish
fr fra French|fy fry Western Frisian|ga gle Irish|gd gla Scottish Gaelic|gl glg Galician|gu guj Gujarati
ha hau Hausa|he heb Hebrew|hi hin Hindi|hr hrv Croatian|ht hat Haitian|hu hun Hungarian|hy hye Armenian
id ind Indonesian|ig ibo Igbo|ilo ilo Iloko|is isl Icelandic|it ita Italian|ja jpn Japanese|jv jav Javanese
ka kat Georgian|kk kaz Kazakh|km khm Khmer|kn kan Kannada|ko kor Korean|ku kmr,kur Kurdish|ky kir Kyrgyz
la lat Latin|lb ltz Luxembourgish|lg lug Ganda|ln lin Lingala|lo lao Lao|lt lit Lithuanian|lv lvs,lav Latvian
mg plt,mlg Malagasy|mi mri Maori|mk mkd Macedonian|ml mal Malayalam|mn khk,mon Mongolian|mr mar Marathi
ms zsm,msa Malay|mt mlt Maltese|my mya Burmese|nb nob Norwegian Bokmål|ne npi,nep Nepali|nl nld Dutch
nn nno Norwegian Nynorsk|no nor Norwegian|ns nso Northern Sotho|oc oci Occitan|or ory,ori Odia|pa pan Punjabi
pl pol Polish|ps pbt,pus Pashto|pt por Portuguese|ro ron Romanian|ru rus Russian|rw kin Kinyarwanda
sa san Sanskrit|sd snd Sindhi|si sin Sinhala|sk slk Slovak|sl slv Slovenian|so som Somali|sq als,sqi Albanian
sr srp Serbian|ss ssw Swati|st sot Southern Sotho|su sun Sundanese|sv swe Swedish|sw swh,swa Swahili
ta tam Tamil|te tel Telugu|tg tgk Tajik|th tha Thai|tk tuk Turkmen|tl tgl Tagalog|tn tsn Tswana
tr tur Turkish|tt tat Tatar|ug uig Uyghur|uk ukr Ukrainian|ur urd Urdu|uz uzn,uzb Uzbek|vi vie Vietnamese
wo wol Wolof|xh xho Xhosa|yi ydd,yid Yiddish|yo yor Yoruba|zh zho,cmn Chinese|zu zul Zulu
"""
# of a language with two scripts
SCRIPTS = {"zh-Hans": "Chinese (simplified)", "zh-Hant": "Chinese (traditional)"}


@cache
def _table() -> tuple[dict[str, str], dict[str, str]]:
    """The code of each language by all its codes, and its name by its code."""
    codes: dict[str, str] = {}
    names = dict(SCRIPTS)
    for line in LANGUAGES.strip().replace("\n", "|").split("|"):
        code, longer, names[code] = line.split(" ", 2)
        codes |= dict.fromkeys([code, *longer.split(",")], code)
    return codes, names


def code_of(language: str) -> str:
    """Return the code of a language: "es" for "es", "spa_Latn" and "es_XX"; what is unknown stays."""
    first, _, script = language.replace("-", "_").partition("_")
    code = _table()[0].get(first)
    if code is None:
        return language
    scripted = f"{code}-{script}"
    return scripted if scripted in SCRIPTS else code


def name_of(code: str) -> str:
    """Return the English name of a language; what is unknown stays."""
    return _table()[1].get(code, code)
