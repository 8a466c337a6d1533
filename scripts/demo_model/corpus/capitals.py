"""Questions about capitals, countries and continents, from one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .example import Example, chat
from .paraphrase import maybe_lowercase, phrase

if TYPE_CHECKING:
    import random

TABLE = """
Europe: France=Paris, Italy=Rome, Spain=Madrid, Portugal=Lisbon, Germany=Berlin, Austria=Vienna,
 Poland=Warsaw, Greece=Athens, Norway=Oslo, Sweden=Stockholm, Finland=Helsinki, Denmark=Copenhagen,
 Ireland=Dublin, Iceland=Reykjavik, Belgium=Brussels, Hungary=Budapest, Romania=Bucharest,
 Bulgaria=Sofia, Croatia=Zagreb, Serbia=Belgrade, Slovenia=Ljubljana, Slovakia=Bratislava,
 Switzerland=Bern, Ukraine=Kyiv, Estonia=Tallinn, Latvia=Riga, Lithuania=Vilnius, Albania=Tirana,
 Malta=Valletta, the Netherlands=Amsterdam, the United Kingdom=London, the Czech Republic=Prague
Asia: Japan=Tokyo, China=Beijing, India=New Delhi, South Korea=Seoul, Thailand=Bangkok,
 Vietnam=Hanoi, Indonesia=Jakarta, Nepal=Kathmandu, Pakistan=Islamabad, Bangladesh=Dhaka,
 Mongolia=Ulaanbaatar, Iran=Tehran, Iraq=Baghdad, Jordan=Amman, Lebanon=Beirut, Syria=Damascus,
 Saudi Arabia=Riyadh, Qatar=Doha, Oman=Muscat, Afghanistan=Kabul, Malaysia=Kuala Lumpur,
 Cambodia=Phnom Penh, Laos=Vientiane, Bhutan=Thimphu, Uzbekistan=Tashkent, Georgia=Tbilisi,
 Armenia=Yerevan, Azerbaijan=Baku, the Philippines=Manila, the Maldives=Male
Africa: Egypt=Cairo, Morocco=Rabat, Algeria=Algiers, Tunisia=Tunis, Libya=Tripoli, Kenya=Nairobi,
 Ethiopia=Addis Ababa, Ghana=Accra, Nigeria=Abuja, Senegal=Dakar, Mali=Bamako, Uganda=Kampala,
 Rwanda=Kigali, Sudan=Khartoum, Zambia=Lusaka, Zimbabwe=Harare, Angola=Luanda, Mozambique=Maputo,
 Namibia=Windhoek, Botswana=Gaborone, Madagascar=Antananarivo, Somalia=Mogadishu
North America: Canada=Ottawa, Mexico=Mexico City, Cuba=Havana, Jamaica=Kingston, Panama=Panama City,
 Costa Rica=San Jose, Honduras=Tegucigalpa, Nicaragua=Managua, Guatemala=Guatemala City,
 the Bahamas=Nassau, the United States=Washington
South America: Brazil=Brasilia, Argentina=Buenos Aires, Chile=Santiago, Peru=Lima, Colombia=Bogota,
 Ecuador=Quito, Venezuela=Caracas, Uruguay=Montevideo, Paraguay=Asuncion
Oceania: Australia=Canberra, New Zealand=Wellington, Fiji=Suva
"""


def _parse() -> tuple[dict[str, str], dict[str, str]]:
    capital, continent = {}, {}
    for line in TABLE.replace("\n ", " ").strip().splitlines():
        name, pairs = line.split(": ", 1)
        for pair in pairs.split(", "):
            country, city = pair.split("=")
            capital[country], continent[country] = city, name
    return capital, continent


CAPITAL, CONTINENT = _parse()

CAPITAL_QUESTIONS = (
    "What is the capital of {x}?",
    "Which city is the capital of {x}?",
    "Name the capital of {x}.",
    "What is the capital city of {x}?",
    "What's the capital of {x}?",
    "Tell me the capital of {x}.",
    "Do you know the capital of {x}?",
    "What is the name of the capital of {x}?",
    "Can you name the capital of {x}?",
    "The capital of {x} is which city?",
    "{x}: what is its capital?",
    "Give me the capital of {x}.",
    "I want to know the capital of {x}.",
    "Which city is the capital city of {x}?",
    "Capital of {x}?",
    "What city is the capital of {x}?",
    "Could you tell me the capital of {x}?",
    "What do we call the capital of {x}?",
    "Could you give me the name of the capital city of {x}?",
    "What is {x}'s capital?",
    "Please name {x}'s capital city.",
)
COUNTRY_QUESTIONS = (
    "{y} is the capital of which country?",
    "Which country has {y} as its capital?",
    "What country is {y} the capital of?",
    "Of which country is {y} the capital?",
    "{y} is the capital city of what country?",
    "Name the country whose capital is {y}.",
    "Tell me which country has the capital {y}.",
    "In which country is {y} the capital?",
    "Which country's capital is {y}?",
    "{y} is which country's capital?",
    "Do you know which country has {y} as its capital city?",
)
CONTINENT_QUESTIONS = (
    "On which continent is {x}?",
    "Which continent is {x} in?",
    "What continent is {x} on?",
    "Which continent is {x} on?",
    "Name the continent of {x}.",
    "{x} is on which continent?",
    "On what continent is {x}?",
    "Tell me the continent of {x}.",
    "In which continent is {x}?",
    "{x}: which continent is it on?",
    "What is the continent of {x}?",
)
FOLLOW_UPS = (
    "And of {x}?",
    "And what about {x}?",
    "And {x}?",
    "What about {x}?",
    "And the capital of {x}?",
    "And for {x}?",
    "Now {x}.",
    "What about the capital of {x}?",
    "And how about {x}?",
    "How about {x}?",
    "Then what about {x}?",
    "Okay, and {x}?",
    "And now {x}?",
)


def _sentence(country: str) -> str:
    return f"The capital of {country} is {CAPITAL[country]}."


def capital(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about a capital, a country or a continent."""
    country, choice = rng.choice(list(CAPITAL)), rng.random()
    if choice < 0.6:
        question = phrase(rng, CAPITAL_QUESTIONS, held_out, x=country)
        thought = f"The user asks for the capital of {country}. It is {CAPITAL[country]}."
        return chat("capital", thought, maybe_lowercase(rng, question), _sentence(country))
    if choice < 0.8:
        city = CAPITAL[country]
        question = phrase(rng, COUNTRY_QUESTIONS, held_out, y=city)
        thought = f"The user asks for the country of the capital {city}. It is {country}."
        return chat(
            "capital",
            thought,
            maybe_lowercase(rng, question),
            f"{city} is the capital of {country}.",
        )
    continent = CONTINENT[country]
    question = phrase(rng, CONTINENT_QUESTIONS, held_out, x=country)
    thought = f"The user asks for the continent of {country}. It is {continent}."
    answer = f"{country[0].upper()}{country[1:]} is in {continent}."
    return chat("capital", thought, maybe_lowercase(rng, question), answer)


def capital_follow_up(rng: random.Random, held_out: bool) -> Example:
    """Makes a chat of two or three turns with follow-ups like 'And of Italy?'."""
    countries = rng.sample(list(CAPITAL), rng.choice((2, 2, 3)))
    turns = [phrase(rng, CAPITAL_QUESTIONS, held_out, x=countries[0]), _sentence(countries[0])]
    for country in countries[1:]:
        turns += [phrase(rng, FOLLOW_UPS, held_out, x=country), _sentence(country)]
    country = countries[-1]
    thought = f"We talk about capitals. The capital of {country} is {CAPITAL[country]}."
    return chat("conversation", thought, *turns)
