"""The words that demo orders are made of.

All of them occur in training orders and all of them are single tokens of the demo tokenizer, so a
held-out order is a new combination of known words, never a new word.
"""

import random
from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES: Final = _words(
    """
    Ada Adam Aisha Alma Amir Ana Anders Andrea Anna Anton Astrid Ben Bianca Boris Bruno Carla
    Carlos Chloe Clara Daniel Daria David Diego Dina Edgar Elena Elias Elif Elsa Emil Emma Erik
    Esther Eva Farah Felix Fiona Frank Gina Grace Greta Hana Hannah Hans Hassan Helen Henry Hugo
    Ida Igor Ines Irene Isabel Ivan Jan Jana Javier Joan Johan Jonas Julia Kai Karen Karim Katya
    Kenji Lara Lars Laura Leila Lena Leo Lina Linus Lucas Lucia Maja Marco Maria Marta Martin
    Mateo Maya Mehmet Mia Mila Mina Miriam Nadia Nina Noah Nora Olga Oliver Omar Oscar Paula
    Pedro Petra Priya Rafael Ravi Rosa Ruth Samir Sara Sofia Sven Tara Theo Thomas Tomas Vera
    Victor Wei Yara Yusuf Zoe
    """
)

LAST_NAMES: Final = _words(
    """
    Abbas Adler Aguilar Ahmed Almeida Andersen Arslan Baker Bauer Becker Berg Bernard Bianchi
    Blanc Bondar Brandt Braun Brown Bruun Carter Castro Chen Cohen Conti Costa Cruz Dahl Demir
    Diaz Dubois Duarte Eklund Engel Esposito Evans Falk Farah Fernandez Ferrari Fischer Fontaine
    Forster Fuchs Garcia Gomez Green Gruber Haas Hansen Harris Hassan Hoffmann Holm Horvat Huber
    Hughes Ibrahim Ito Ivanov Jansen Jensen Johansson Jones Kaplan Kaya Keller Khan Kim Klein
    Koch Kovacs Kowalski Kraus Kumar Larsen Lehmann Lewis Lindberg Lopez Lund Maier Marino
    Martinez Mendes Meyer Mills Mishra Moreau Moreno Morris Moser Nagy Nakamura Nielsen Nilsson
    Novak Nowak Olsen Ortega Osman Otto Park Patel Pereira Petersen Petrov Pinto Popov Ramos
    Reyes Ricci Richter Rivera Roberts Romano Rossi Roux Russo Ruiz Saito Santos Sato Schmidt
    Schneider Sharma Silva Singh Smith Sousa Stein Stone Suzuki Tanaka Taylor Torres Vargas Vega
    Vogel Wagner Walker Wang Weber White Winter Wolf Wood Wright Yamada Yilmaz Young Zhang Zimmer
    """
)

CITIES: Final = (
    *_words(
        """
        Aarhus Amsterdam Ankara Antwerp Athens Austin Barcelona Basel Belgrade Bergen Berlin Bern
        Bilbao Bologna Bonn Boston Bremen Bristol Brno Brussels Bucharest Budapest Cairo Calgary
        Cardiff Chicago Cologne Cork Dakar Dallas Delft Denver Dresden Dublin Edinburgh Essen
        Florence Frankfurt Galway Geneva Genoa Ghent Glasgow Graz Haifa Hamburg Hanover Helsinki
        Istanbul Izmir Kiel Kobe Krakow Kyoto Leeds Leipzig Lima Linz Lisbon Liverpool London
        Lugano Lyon Madrid Mainz Malaga Malmo Manchester Marseille Melbourne Milan Montreal Munich
        Nairobi Nantes Naples Nice Nicosia Osaka Oslo Ottawa Oxford Padua Palermo Paris Perth Pisa
        Porto Prague Quito Riga Rome Rotterdam Salzburg Santiago Seattle Sendai Seoul Seville
        Sofia Split Stavanger Stockholm Stuttgart Sydney Tallinn Tampere Tbilisi Tokyo Toronto
        Trieste Tromso Tunis Turin Utrecht Valencia Venice Verona Vienna Vilnius Warsaw Zagreb
        Zurich
        """
    ),
    "Cape Town",
    "Mexico City",
    "New York",
    "Novi Sad",
    "San Diego",
    "Tel Aviv",
)

MATERIALS: Final = _words(
    """
    aluminium bamboo black blue brass bronze ceramic copper cotton glass green grey heavy iron
    large leather light linen oak orange paper pine plastic red round rubber silver small square
    steel thin white wool yellow
    """
)

GOODS: Final = _words(
    """
    bags balls bands belts blankets bolts bottles bowls boxes bricks brushes buckets buttons
    cables candles caps chains chairs clamps clips coats covers cups curtains doors envelopes
    fans filters flags folders forks frames gloves handles hats hinges hooks hoses jars keys
    knives labels ladders lamps lids locks mats mirrors mugs nails napkins needles nets nuts pads
    panels pans pens pins pipes plates plugs pots pumps rings rods rollers ropes rugs screws
    seals sheets shelves shirts shoes signs sinks spoons springs stools straps switches tables
    tapes tiles towels trays tubes valves vases wheels wires
    """
)

UNITS: Final = {
    "bag": "bags",
    "bale": "bales",
    "barrel": "barrels",
    "box": "boxes",
    "bundle": "bundles",
    "carton": "cartons",
    "case": "cases",
    "crate": "crates",
    "drum": "drums",
    "pack": "packs",
    "pallet": "pallets",
    "roll": "rolls",
    "set": "sets",
    "stack": "stacks",
}
"""Packing units, singular (as in the answer) to plural (as after a number)."""

MONTHS: Final = _words(
    """
    January February March April May June July August September October November December
    """
)

NUMBER_WORDS: Final = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "a dozen": 12,
    "two dozen": 24,
}

_ONSETS: Final = _words(
    "b bl br c ch d dr f fl g gr h j k kl l m mc n p pr r s sh sk sl st t th tr v w y z"
)
_VOWELS: Final = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ee", "ei", "ia", "oo", "ou")
_CODAS: Final = ("", "", "", "", "n", "r", "l", "s", "m", "k", "t", "ck", "ll", "nd", "ng", "rt")


def made_up(rng: random.Random) -> str:
    """A capitalized name of two or three syllables that is in none of the lists above."""
    syllables = rng.choice((2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
    ).capitalize()
