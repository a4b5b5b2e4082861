"""Bills: what each tenant computed, reused, loaded, held and lost, so that the parts add up to the cache's own sums."""

from quire.insight.bills.bill import Bill, BillLine, Who
from quire.insight.bills.bill_file import load_bill, save_bill
from quire.insight.bills.bills import Bills
from quire.insight.bills.prices import PriceList, load_prices

__all__ = ["Bill", "BillLine", "Bills", "PriceList", "Who", "load_bill", "load_prices", "save_bill"]
