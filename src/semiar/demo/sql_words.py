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

# {what} = what is asked for, from the columns to the number of rows
FRAMES = (
    "Show the {what}.",
    "List the {what}.",
    "Give me the {what}.",
    "Find the {what}.",
    "Return the {what}.",
    "I need the {what}.",
    "What are the {what}?",
)
MEASURES = {"SUM": "total", "AVG": "average", "MIN": "lowest", "MAX": "highest"}
# text, number and date conditions: operator -> phrasings after "is"
TEXT_TESTS = {"=": ("{value}", "equal to {value}"), "<>": ("not {value}", "different from {value}")}
NUMBER_TESTS = {
    "=": ("exactly {value}",),
    "<": ("below {value}", "less than {value}"),
    ">": ("above {value}", "more than {value}"),
    "<=": ("at most {value}",),
    ">=": ("at least {value}",),
}
DATE_TESTS = {"<": ("before {value}", "earlier than {value}"), ">": ("after {value}", "later than {value}")}
ORDER_PHRASES = {"ASC": "ordered by", "DESC": "in descending order of"}
