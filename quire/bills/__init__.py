"""Bills: what each tenant computed, reused, loaded, held and lost, so that the parts add up to the cache's own sums."""

from quire.bills.bill import Bill, Line, Who
from quire.bills.bill_file import load_bill, save_bill
from quire.bills.bills import Bills
from quire.bills.prices import Prices, load_prices

__all__ = ["Bill", "Bills", "Line", "Prices", "Who", "load_bill", "load_prices", "save_bill"]
