"""Vocabulary of the generated text-to-SQL set: tables, their columns, values and phrasings."""

from __future__ import annotations

# singular plural: columns that only make sense here, name:kind, kind being a key of VALUES or of RANGES
TABLES = """
book books: title:title author:person genre:genre pages:hundreds isbn_prefix:small
employee employees: department:department job_title:job salary:thousands hire_date:date overtime_hours:small
student students: major:subject grade_average:score enrolled_on:date credits:small advisor:person
course courses: subject:subject teacher:person credits:small seats:hundreds room:code
film films: title:title director:person genre:genre running_minutes:hundreds premiere:date
song songs: title:title artist:person album:title length_seconds:hundreds plays:thousands
painting paintings: title:title painter:person medium:material finished_on:date appraisal:thousands
museum museums: city:city visitors:thousands opened_on:date curator:person ticket_price:price
team teams: coach:person stadium:title league:level wins:small losses:small
player players: position:role goals:small birth_date:date market_value:thousands nationality:country
contest contests: venue:city home_goals:small away_goals:small played_on:date referee:person
hotel hotels: city:city stars:small rooms:hundreds nightly_rate:price manager:person
flight flights: origin:city destination:city distance:thousands departure_date:date airline:company
airport airports: city:city country:country runways:small passengers:thousands code:code
train trains: operator:company top_speed:hundreds carriages:small route:title built_on:date
ship ships: captain:person home_port:city tonnage:thousands launched_on:date flag:country
car cars: maker:company color:color mileage:thousands price:thousands fuel:material
bicycle bicycles: brand:company color:color gears:small weight:score frame:material
phone phones: maker:company battery_hours:small storage:hundreds price:price release_date:date
laptop laptops: brand:company memory:hundreds screen_size:score price:thousands color:color
product products: category:department supplier:company price:price stock:hundreds rating:score
order orders: customer:person total:price items:small ordered_on:date status:status
customer customers: city:city country:country joined_on:date orders_placed:small loyalty_level:level
supplier suppliers: country:country contact:person lead_days:small reliability:score product_line:department
invoice invoices: client:company amount:thousands issued_on:date status:status due_days:small
company companies: industry:department headquarters:city revenue:thousands founded_on:date ceo:person
project projects: leader:person budget:thousands start_date:date status:status priority:level
city cities: country:country population:thousands mayor:person elevation:hundreds area:hundreds
country countries: capital:city continent:region population:thousands currency_code:code area:thousands
river rivers: length:thousands source_country:country mouth:city flow_rate:hundreds basin:region
mountain mountains: country:country height:thousands first_climb:date climber:person mountain_range:region
lake lakes: country:country depth:hundreds area:thousands salinity:score region:region
park parks: city:city area:hundreds trees:thousands opened_on:date ranger:person
bridge bridges: city:city span:hundreds material:material opened_on:date designer:person
tower towers: city:city floors:small height:hundreds architect:person material:material
house houses: city:city bedrooms:small price:thousands owner:person sold_on:date
school schools: city:city principal:person pupils:hundreds founded_on:date ranking:small
hospital hospitals: city:city beds:hundreds director:person budget:thousands specialty:subject
doctor doctors: specialty:subject hospital:title years_of_practice:small patients:hundreds license_date:date
patient patients: diagnosis:condition age:small doctor:person admitted_on:date blood_type:code
animal animals: species:species weight:hundreds age:small keeper:person habitat:region
dog dogs: breed:species owner:person weight:score age:small vaccinated_on:date
plant plants: species:species height:hundreds color:color planted_on:date water_need:level
farm farms: owner:person country:country acres:hundreds crop:food cows:hundreds
recipe recipes: cuisine:country main_ingredient:food minutes:small calories:hundreds cook:person
restaurant restaurants: city:city cuisine:country rating:score tables:small chef:person
wine wines: grape:food region:region vintage:hundreds price:price producer:company
festival festivals: city:city genre:genre visitors:thousands start_date:date organizer:person
concert concerts: artist:person venue:title tickets_sold:thousands held_on:date ticket_price:price
game games: studio:company genre:genre rating:score copies_sold:thousands release_date:date
experiment experiments: scientist:person subject:subject duration:small cost:thousands status:status
satellite satellites: country:country mass:hundreds launch_date:date orbit_height:thousands purpose:subject
planet planets: moons:small radius:thousands discovered_on:date discoverer:person surface:material
warehouse warehouses: city:city capacity:thousands manager:person shelves:hundreds opened_on:date
machine machines: maker:company power:hundreds cost:thousands installed_on:date status:status
ticket tickets: assignee:person priority:level status:status hours_spent:small opened_on:date
article articles: headline:title author:person section:department words:thousands published_on:date
podcast podcasts: host:person genre:genre episodes:hundreds listeners:thousands started_on:date
"""

COMMON = "name:name notes:title region:region rank:small score:score updated_on:date type:level owner_name:person"

PARENTS = ("company", "city", "school", "museum", "hospital", "team", "festival", "warehouse", "farm", "project")

VALUES = {
    "name": "Aurora Beacon Cedar Delta Ember Falcon Granite Harbor Indigo Juniper Kestrel Lumen Maple Nimbus Onyx",
    "title": "Silent_Road Blue_Garden Last_Train Winter_Song North_Hall Golden_Gate Night_Market Open_Sky Old_Mill",
    "person": "Ada_Novak Ben_Okoro Carla_Ruiz Dmitri_Levin Eva_Lund Farid_Haddad Grace_Kim Hugo_Silva Ines_Moreau "
    "Jonas_Weber Keiko_Tanaka Liam_Byrne Maya_Patel Nora_Quinn",
    "city": "Lisbon Oslo Nairobi Kyoto Toronto Lima Prague Cairo Austin Geneva Perth Dublin Mumbai Seoul Bogota",
    "country": "Norway Brazil Japan Kenya Canada France India Chile Egypt Poland Mexico Vietnam Ireland Ghana",
    "region": "north south east west coastal alpine central lowland highland island",
    "genre": "drama comedy jazz rock mystery science_fiction documentary folk opera thriller",
    "department": "sales research finance logistics marketing design support legal toys garden",
    "job": "engineer analyst clerk driver designer accountant nurse planner",
    "subject": "physics biology history chemistry economics law music statistics cardiology geology",
    "company": "Acme Borealis Contoso Dynatek Evergreen Fabrikam Globex Hyperion Initech Lumina",
    "material": "steel oak glass copper carbon marble bronze cotton diesel stone",
    "color": "red blue green black white silver yellow orange purple",
    "status": "open closed pending shipped cancelled delayed approved",
    "level": "low medium high basic premium gold junior senior",
    "role": "goalkeeper defender midfielder striker captain winger",
    "condition": "flu asthma fracture migraine anemia allergy diabetes",
    "species": "otter falcon maple beagle orchid lynx tortoise fern salmon",
    "food": "rice wheat tomato beef merlot lentil maize apple basil",
    "code": "A1 B7 C3 D9 E2 F5 K4 M8 Q6 X0",
}
RANGES = {"small": (2, 60, 1), "hundreds": (50, 950, 10), "thousands": (1000, 90000, 500)}
DECIMALS = {"score": (1, 10, 1), "price": (5, 400, 2)}

# {what} = columns or a measure, {rows} = the plural noun with its conditions
LIST_FRAMES = (
    "What are the {what} of the {rows}?",
    "List the {what} of all {rows}.",
    "Show the {what} for {rows}.",
    "Give me the {what} of {rows}.",
    "Find the {what} of every one of the {rows}.",
    "Return the {what} for all {rows}.",
    "I need the {what} of the {rows}.",
    "Which values of {what} belong to {rows}?",
    "Look up the {what} of {rows}.",
    "For {rows}, what are the {what}?",
)
DISTINCT_FRAMES = (
    "What are the different {what} of the {rows}?",
    "List each distinct {what} among {rows}.",
    "Show the unique {what} found for {rows}.",
    "Which values of {what} occur among {rows}, without repeats?",
)
COUNT_FRAMES = (
    "How many {rows} are there?",
    "Count the {rows}.",
    "What is the number of {rows}?",
    "Tell me how many {rows} exist.",
)
VALUE_FRAMES = (
    "What is the {what} of the {rows}?",
    "Find the {what} for {rows}.",
    "Compute the {what} over all {rows}.",
    "For {rows}, give the {what}.",
    "Tell me the {what} among the {rows}.",
)
GROUP_FRAMES = (
    "For each {key}, what is the {what} of the {rows}?",
    "Show the {what} of {rows} by {key}.",
    "Give the {what} per {key} for the {rows}.",
    "Group the {rows} by {key} and return the {what}.",
    "What is the {what} of {rows} in every {key}?",
)
MEASURES = {
    "COUNT": ("number",),
    "SUM": ("total {column}", "sum of {column}", "combined {column}"),
    "AVG": ("average {column}", "mean {column}"),
    "MIN": ("lowest {column}", "minimum {column}", "smallest {column}"),
    "MAX": ("highest {column}", "maximum {column}", "largest {column}"),
}
# text, number and date conditions: operator -> phrasings
TEXT_TESTS = {
    "=": ("whose {column} is {value}", "with {value} as {column}", "where the {column} equals {value}"),
    "<>": ("whose {column} is not {value}", "with any {column} but {value}"),
    "starts": ("whose {column} starts with {value}", "with a {column} beginning with {value}"),
    "ends": ("whose {column} ends with {value}", "with a {column} ending in {value}"),
    "contains": ("whose {column} contains {value}", "with {value} somewhere in the {column}"),
}
NUMBER_TESTS = {
    "=": ("with a {column} of exactly {value}", "whose {column} is {value}"),
    "<": ("with a {column} below {value}", "whose {column} is less than {value}", "with {column} under {value}"),
    ">": ("with a {column} above {value}", "whose {column} is more than {value}", "with {column} over {value}"),
    "<=": ("with a {column} of at most {value}", "whose {column} is {value} or less"),
    ">=": ("with a {column} of at least {value}", "whose {column} is {value} or more"),
    "between": ("with a {column} between {value} and {other}", "whose {column} is from {value} to {other}"),
}
DATE_TESTS = {
    "<": ("whose {column} is before {value}", "with a {column} earlier than {value}"),
    ">": ("whose {column} is after {value}", "with a {column} later than {value}"),
    "between": ("with a {column} between {value} and {other}", "whose {column} lies from {value} to {other}"),
}
ORDER_PHRASES = {
    "ASC": ("sorted by {column} from low to high", "in ascending order of {column}", "ordered by {column}"),
    "DESC": ("sorted by {column} from high to low", "in descending order of {column}", "by {column}, greatest first"),
}
LIMIT_PHRASES = ("keep only the first {count}", "limited to {count} rows", "just the top {count}")
HAVING_PHRASES = {
    ">": ("only where that is more than {value}", "keeping those above {value}"),
    "<": ("only where that is less than {value}", "keeping those below {value}"),
}
JOIN_PHRASES = (
    "{own} of the {rows} together with the {other} of their {parent}",
    "{own} of {rows}, and the {other} of the {parent} each belongs to",
    "{own} for {rows} and the matching {parent}'s {other}",
)
JOIN_FRAMES = (
    "List the {what}.",
    "Show the {what}.",
    "What are the {what}?",
    "Return the {what}.",
    "Give me the {what}.",
)
# what part of a value a LIKE pattern takes, and the pattern
PATTERNS = {
    "starts": (slice(1), "{}%"),
    "ends": (slice(-2, None), "%{}"),
    "contains": (slice(1, 4), "%{}%"),
}
